"""The bundled trace is what its generator writes, and has the traffic that it promises."""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from inferdoc.data import trace_generator
from inferdoc.data.trace_generator import OFF_PEAK_S, encode, generate


@pytest.fixture(scope="module")
def bundled(repository: Path) -> bytes:
    return (repository / "inferdoc" / "data" / "trace.jsonl.gz").read_bytes()


@pytest.fixture(scope="module")
def requests(bundled: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(bundled).splitlines()]


@pytest.fixture(scope="module")
def tokenizer(repository: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(repository / "inferdoc" / "data" / "target")


def kind(request: dict[str, Any]) -> str:
    return str(request["session_id"]).split("-")[0]


def prompt_ids(tokenizer: Any, request: dict[str, Any]) -> list[int]:
    rendered = tokenizer.apply_chat_template(request["messages"][:-1], tokenize=False, add_generation_prompt=True)
    return list(tokenizer(rendered)["input_ids"])


def output_tokens(tokenizer: Any, request: dict[str, Any]) -> int:
    return len(tokenizer(request["messages"][-1]["content"])["input_ids"])


def percentile(values: list[int], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def test_the_bundled_trace_is_byte_for_byte_what_seed_0_generates(bundled: bytes) -> None:
    assert gzip.decompress(encode(generate(0))) == gzip.decompress(bundled)


def test_the_compressed_file_carries_no_time_and_repeats(bundled: bytes) -> None:
    assert bundled[4:8] == bytes(4)
    assert encode(generate(5, 40)) == encode(generate(5, 40))
    assert encode(generate(5, 40)) != encode(generate(6, 40))


def test_the_command_writes_what_the_function_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "trace.jsonl.gz"
    arguments = ["trace_generator", "--seed", "7", "--requests", "30", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", arguments)
    trace_generator.main()
    assert [json.loads(line) for line in gzip.decompress(output.read_bytes()).splitlines()] == generate(7, 30)


def test_there_are_at_least_320_requests_of_three_kinds_in_the_promised_shares(requests: list[dict[str, Any]]) -> None:
    assert len(requests) >= 320
    counts = Counter(map(kind, requests))
    for name, share in {"rag": 0.45, "chat": 0.35, "agent": 0.20}.items():
        assert counts[name] / len(requests) == pytest.approx(share, abs=0.03)


def test_requests_are_sorted_and_end_with_the_recorded_answer(requests: list[dict[str, Any]]) -> None:
    times = [request["timestamp"] for request in requests]
    assert times == sorted(times)
    assert times[0] >= 0
    for request in requests:
        roles = [message["role"] for message in request["messages"]]
        assert roles == ["system"] + ["user", "assistant"] * (len(roles) // 2)
        assert all(message["content"] for message in request["messages"])


def test_arrivals_are_bursty_in_each_phase_and_the_peak_is_busier(requests: list[dict[str, Any]]) -> None:
    times = [request["timestamp"] for request in requests]

    def arrivals_by_second(begin: float, end: float) -> list[int]:
        counts = Counter(int(time - begin) for time in times if begin <= time < end)
        return [counts[second] for second in range(int(end - begin))]

    quiet, peak = arrivals_by_second(0, OFF_PEAK_S), arrivals_by_second(OFF_PEAK_S, OFF_PEAK_S + 30)
    # The index of dispersion of a Poisson process is 1; with 30 bins it stays below 1.6 in 97% of draws.
    for phase in (quiet, peak):
        assert statistics.variance(phase) / statistics.mean(phase) > 1.6
    assert statistics.mean(peak) > 1.8 * statistics.mean(quiet)
    assert 1.5 < len(times) / times[-1] < 6


def test_each_turn_of_a_chat_carries_the_turns_before_it(requests: list[dict[str, Any]]) -> None:
    sessions = defaultdict(list)
    for request in requests:
        if kind(request) == "chat":
            sessions[request["session_id"]].append(request["messages"])
    assert max(map(len, sessions.values())) >= 4
    for turns in sessions.values():
        for earlier, later in itertools.pairwise(turns):
            assert later[: len(earlier)] == earlier
            assert len(later) == len(earlier) + 2


def test_every_request_fits_into_1024_tokens(requests: list[dict[str, Any]], tokenizer: Any) -> None:
    for request in requests:
        assert len(prompt_ids(tokenizer, request)) + output_tokens(tokenizer, request) <= 1024


def test_outputs_have_a_long_tail_in_every_kind(requests: list[dict[str, Any]], tokenizer: Any) -> None:
    lengths = defaultdict(list)
    for request in requests:
        lengths[kind(request)].append(output_tokens(tokenizer, request))
    every = [length for values in lengths.values() for length in values]
    assert 15 <= statistics.median(every) <= 45
    assert percentile(every, 95) > 3 * statistics.median(every)
    assert 200 < max(every) <= 420
    for values in lengths.values():
        assert min(values) <= 10
        assert max(values) >= 150
        assert statistics.stdev(values) / statistics.mean(values) > 0.8


def test_document_questions_share_one_long_system_prompt(requests: list[dict[str, Any]], tokenizer: Any) -> None:
    systems = {request["messages"][0]["content"] for request in requests if kind(request) == "rag"}
    assert len(systems) == 1
    assert 250 <= len(tokenizer(systems.pop())["input_ids"]) <= 400


def test_no_two_agent_requests_share_a_block_of_sixteen_tokens(requests: list[dict[str, Any]], tokenizer: Any) -> None:
    agents = [request for request in requests if kind(request) == "agent"]
    by_stamp = {request["messages"][0]["content"]: prompt_ids(tokenizer, request) for request in agents}
    assert all(stamp.startswith("2026-03-02 10:0") for stamp in by_stamp)
    assert len({stamp.partition("\n")[2] for stamp in by_stamp}) == 1
    assert len({tuple(ids[:16]) for ids in by_stamp.values()}) == len(by_stamp)
    assert len(by_stamp) == len(agents)


def test_document_answers_quote_the_prompt_and_chat_replies_do_not(requests: list[dict[str, Any]]) -> None:
    def quoted_share(request: dict[str, Any]) -> float | None:
        prompt = " ".join(" ".join(message["content"] for message in request["messages"][:-1]).split())
        words = request["messages"][-1]["content"].split()
        runs = [" ".join(words[at : at + 4]).strip('"') for at in range(len(words) - 3)]
        return sum(run in prompt for run in runs) / len(runs) if len(runs) >= 8 else None

    shares = defaultdict(list)
    for request in requests:
        if (share := quoted_share(request)) is not None:
            shares[kind(request)].append(share)
    assert statistics.mean(shares["rag"]) > 0.6
    assert statistics.mean(shares["chat"]) < 0.2
