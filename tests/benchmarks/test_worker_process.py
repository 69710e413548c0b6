"""The worker protocol with a fake engine: answers, failures, silence, and a process that rests between its jobs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from peers.process import Worker, WorkerError

ENGINE = """
import os, sys, threading, time
sys.path.insert(0, {peers!r})
from protocol import serve

def load(settings):
    print("a library prints to stdout")
    if settings.get("fail"):
        raise RuntimeError(settings["fail"])
    if settings.get("spin"):
        def spin():
            while True:
                pass
        threading.Thread(target=spin, daemon=True).start()

    def run(prompts, new_tokens):
        if new_tokens == 13:
            raise ValueError("thirteen")
        if new_tokens == 14:
            os._exit(9)
        if new_tokens == 15:
            time.sleep(60)
        print("and again")
        if new_tokens == 16:
            return [[1] * (16 - i) for i, _ in enumerate(prompts)]
        return [[sum(prompt)] * new_tokens for prompt in prompts]

    return run, {{"version": "1.0"}}

serve(load)
"""


@pytest.fixture
def start(tmp_path, repository):
    script = tmp_path / "engine.py"
    script.write_text(ENGINE.format(peers=str(repository / "benchmarks" / "peers")))
    workers = []

    def _start(**settings) -> Worker:
        workers.append(Worker([sys.executable, str(script)], settings, {}))
        return workers[-1]

    yield _start
    for worker in workers:
        worker.close()


def test_a_job_comes_back_with_its_time_and_tokens(start):
    worker = start()
    assert worker.facts == {"version": "1.0"}
    job = worker.run([[1, 2], [3, 4]], 3)
    assert job.tokens == [[3, 3, 3], [7, 7, 7]]
    assert job.seconds > 0
    assert job.tokens_per_s == pytest.approx(6 / job.seconds)
    assert worker.run([[5]], 1).tokens == [[5]]


def test_a_failure_while_loading_says_why(start):
    with pytest.raises(WorkerError, match="RuntimeError: no weights"):
        start(fail="no weights")


def test_a_failure_in_a_job_says_why_and_ends_the_worker(start):
    worker = start()
    with pytest.raises(WorkerError, match="ValueError: thirteen"):
        worker.run([[1]], 13)
    assert worker.ended


def test_a_process_that_dies_is_reported(start):
    worker = start()
    with pytest.raises(WorkerError, match="the process ended"):
        worker.run([[1]], 14)


def test_an_engine_that_ends_an_output_early_did_not_do_the_work(start):
    with pytest.raises(WorkerError, match="31 tokens came back of 2 x 16"):
        start().run([[1], [2]], 16)


def test_silence_is_a_failure_after_the_time_limit(start):
    worker = start()
    with pytest.raises(WorkerError, match=r"no answer in 0\.2 s"):
        worker.run([[1]], 15, timeout_s=0.2)
    assert worker.ended


def test_an_interpreter_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(WorkerError, match="cannot be started"):
        Worker([str(tmp_path / "python"), "x.py"], {}, {})


def test_an_idle_worker_does_not_spin(start):
    """Its engine has a thread that never rests; between jobs it must use no processor time."""
    worker = start(spin=True)
    stat = Path(f"/proc/{worker._process.pid}/stat")
    worker.run([[1]], 1)

    def ticks() -> int:
        return sum(map(int, stat.read_text().rsplit(")", 1)[1].split()[11:13]))

    before = ticks()
    time.sleep(0.5)
    assert ticks() == before
    assert worker.run([[2]], 1).tokens == [[2]], "it goes on when asked"


def test_a_benchmark_that_is_ended_from_outside_leaves_no_worker(tmp_path, repository, start):
    script = tmp_path / "engine.py"
    benchmark = tmp_path / "benchmark.py"
    benchmark.write_text(
        f"import sys, time\nsys.path.insert(0, {str(repository / 'benchmarks')!r})\n"
        "from peers.process import Worker, end_on_signal\nend_on_signal()\n"
        f"worker = Worker([sys.executable, {str(script)!r}], {{}}, {{}})\n"
        "try:\n    print(worker._process.pid, flush=True)\n    time.sleep(60)\nfinally:\n    worker.close()\n"
    )
    process = subprocess.Popen([sys.executable, str(benchmark)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    process.terminate()
    assert process.wait(timeout=30) == 143
    process.stdout.close()
    assert not Path(f"/proc/{worker}").exists()
