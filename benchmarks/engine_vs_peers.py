"""Our engine against others on the same work. On a CPU: SmolLM2-135M in float32, 32 requests at once.

    python benchmarks/engine_vs_peers.py --quick                 under 5 minutes, no interval
    python benchmarks/engine_vs_peers.py                         6 rounds, for an interval
    python benchmarks/engine_vs_peers.py --work cuda             on a card: 8B shape, 64 requests of 1k in, 256 out

Our engine runs with the settings that `diagnose` would use, and on a CPU also compiled. Each engine, ours with each
settings too, loads once in a process of its own and does one job to warm up. Then rounds: each does the job once, and a
ratio pairs two engines within a round. The order turns from round to round, and every second round has it reversed. One
value for each job: output tokens a second. Only one engine computes at a time, with all cores; the others are stopped.
An engine that is missing or fails is reported with its reason. With --output the result is written after every round,
and says that it is partial until the end.
"""

from __future__ import annotations

import argparse
import datetime
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from peers.comparison import Ratio, earliest, first_divergences
from peers.machine import machine
from peers.process import Job, Worker, WorkerError, end_on_signal
from peers.registry import OURS, PEERS, ROOT, WORKS, Peer, Work
from peers.results import write_json

from inferdoc.devices import find_device
from inferdoc.errors import InputError

FOLDER = ROOT / "build" / "benchmarks"
SEED = 0
ROUNDS = 6
QUICK_ROUNDS = 2
QUICK_LIMIT_S = 240.0
QUICK_WARM_TOKENS = 4
"""New tokens of the job to warm up: every prompt is computed, and some steps of decodes."""
QUICK_PEERS = ["transformers-static", "vllm"]
"""Left out: llama.cpp, which runs other weights, and transformers' continuous batching, whose job takes as long as
those of all the others."""
NO_TIME = "no time left"


@dataclass
class Entrant:
    """An engine in the comparison. `reason` is set where it is missing or failed; its jobs until then stay."""

    peer: Peer
    worker: Worker | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    longest_s: float = 0.0
    """Of its jobs so far."""
    jobs: dict[int, Job] = field(default_factory=dict)
    """By round."""

    def load(self, start: Callable[[Peer], Worker], warm: Callable[[Worker], Job]) -> None:
        try:
            self.worker = start(self.peer)
            self.facts = self.worker.facts
            self.longest_s = warm(self.worker).seconds
            say(f"{self.peer.title}: loaded; warm-up {self.longest_s:.1f} s")
        except WorkerError as error:
            self._drop(f"not available: {error}", str(error))

    def run(self, number: int, job: Callable[[Worker], Job]) -> None:
        assert self.worker is not None
        try:
            done = self.jobs[number] = job(self.worker)
        except WorkerError as error:
            reason = f"failed after {len(self.jobs)} rounds: {error}"
            self._drop(reason, reason)
            return
        self.longest_s = max(self.longest_s, done.seconds)
        say(f"round {number + 1}, {self.peer.title}: {done.tokens_per_s:.1f} tokens/s")

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()

    def describe(self) -> dict[str, Any]:
        rates = [job.tokens_per_s for job in self.jobs.values()]
        return {
            "title": self.peer.title,
            "status": "measured" if rates and self.reason is None else "failed" if rates else "not available",
            "reason": self.reason if self.reason is not None or rates else NO_TIME,
            "facts": self.facts,
            "tokens_per_s": {str(number + 1): job.tokens_per_s for number, job in sorted(self.jobs.items())},
            "median_tokens_per_s": statistics.median(rates) if rates else None,
        }

    def _drop(self, said: str, reason: str) -> None:
        self.close()
        self.reason = reason
        say(f"{self.peer.title}: {said}")


@dataclass(frozen=True)
class Pairing:
    """Our engine with one choice of settings against a peer, over the rounds that both ran."""

    ratio: Ratio
    divergences: dict[int, int]
    """Request to first differing position, of all rounds (the earliest)."""

    @classmethod
    def of(cls, ours: Entrant, peer: Entrant) -> Pairing | None:
        rounds = sorted(ours.jobs.keys() & peer.jobs.keys())
        if not rounds:
            return None
        pairs = [(ours.jobs[number], peer.jobs[number]) for number in rounds]
        return cls(
            Ratio.of([mine.tokens_per_s for mine, _ in pairs], [theirs.tokens_per_s for _, theirs in pairs]),
            earliest(first_divergences(mine.tokens, theirs.tokens) for mine, theirs in pairs),
        )

    def describe(self, requests: int) -> dict[str, Any]:
        return {
            "ratio": self.ratio.describe(),
            "identical_requests": requests - len(self.divergences),
            "first_divergences": self.divergences,
        }


def draw_prompts(work: Work) -> list[list[int]]:
    """Random tokens, all prompts of one length; the first 16 ids are left out (control tokens)."""
    tokens = np.random.default_rng(SEED).integers(16, work.vocabulary, (work.requests, work.prompt_tokens))
    return [list(map(int, row)) for row in tokens]


def order(entrants: Sequence[Entrant], number: int) -> list[Entrant]:
    """A round's order: turned by one place after every two rounds, and reversed in every second."""
    turn = number // 2 % len(entrants)
    turned = [*entrants[turn:], *entrants[:turn]]
    return turned[::-1] if number % 2 else turned


def compare(
    start: Callable[[Peer], Worker],
    ours: Sequence[Peer],
    peers: Sequence[Peer],
    job: Callable[[Worker], Job],
    rounds: int,
    *,
    limit_s: float = math.inf,
    warm: Callable[[Worker], Job] | None = None,
    after_round: Callable[[list[Entrant], list[Entrant]], None] = lambda ours, peers: None,
) -> tuple[list[Entrant], list[Entrant]]:
    """Ours and the peers, with their jobs. Nothing is loaded past the limit, and no job begins that would end past it.

    Args:
        warm: the job to warm up; `job` by default.
        after_round: called with both lists, also before the first round.

    Raises:
        WorkerError: our own engine failed with all its settings.
    """
    end = time.monotonic() + limit_s
    mine, others = [Entrant(peer) for peer in ours], [Entrant(peer) for peer in peers]
    everyone = mine + others
    try:
        for entrant in everyone:
            if time.monotonic() < end:
                entrant.load(start, warm or job)
            else:
                entrant.reason = NO_TIME
        after_round(mine, others)
        for number in range(rounds):
            for entrant in order(everyone, number):
                if entrant.reason is None and time.monotonic() + entrant.longest_s < end:
                    entrant.run(number, job)
            if all(entrant.reason is not None for entrant in mine):
                raise WorkerError("; ".join(f"{entrant.peer.title}: {entrant.reason}" for entrant in mine))
            after_round(mine, others)
        return mine, others
    finally:
        for entrant in everyone:
            entrant.close()


def judge(ours: Sequence[Entrant], peers: Sequence[Entrant], work: Work) -> dict[str, Any]:
    """The bars, over the peers that were measured, for each of our settings and with the names of those that met it.

    The best peer is the one with the lowest ratio of ours over it.
    """
    judged = {entrant.peer.name: _judge_one(entrant, peers, work) for entrant in ours}
    verdicts: dict[str, Any] = {}
    for name, least in (("bar", work.bar), ("goal", work.goal)):
        ratios = {settings: each["ratio"]["estimate"] for settings, each in judged.items() if each["ratio"] is not None}
        verdicts[name] = (
            {"at_least": least, "met_by": [settings for settings, ratio in ratios.items() if ratio >= least]}
            if least is not None and ratios
            else None
        )
    same = {settings: each["identical_tokens"] for settings, each in judged.items()}
    known = any(value is not None for value in same.values())
    verdicts["identical_tokens"] = {"met_by": [name for name, value in same.items() if value]} if known else None
    return {"settings": judged, **verdicts}


def _judge_one(ours: Entrant, peers: Sequence[Entrant], work: Work) -> dict[str, Any]:
    pairings = {peer.peer.name: (peer, found) for peer in peers if (found := Pairing.of(ours, peer)) is not None}
    best = min(pairings, key=lambda name: pairings[name][1].ratio.estimate, default=None)
    against = work.bar_peer or best
    chosen = pairings.get(against) if against is not None else None
    compared = [found for peer, found in pairings.values() if peer.peer.same_weights]
    return {
        "best_peer": best,
        "against": against,
        "ratio": None if chosen is None else chosen[1].ratio.describe(),
        "identical_tokens": not any(found.divergences for found in compared) if work.exact and compared else None,
    }


def describe(ours: Sequence[Entrant], peers: Sequence[Entrant], work: Work) -> dict[str, Any]:
    """What was measured: our engine by settings, the peers with a pairing for each of these, and the bars."""
    described = {}
    for peer in peers:
        pairings = {entrant.peer.name: Pairing.of(entrant, peer) for entrant in ours}
        described[peer.peer.name] = peer.describe() | {
            "same_weights": peer.peer.same_weights,
            "against": {name: found and found.describe(work.requests) for name, found in pairings.items()},
        }
    return {
        "engine": {entrant.peer.name: entrant.describe() for entrant in ours},
        "peers": described,
        "bars": judge(ours, peers, work),
    }


def report(result: dict[str, Any]) -> str:
    lines = ["", f"{'':58}{'tokens/s':>9}  identical outputs"]
    for settings, engine in result["engine"].items():
        lines.append(f"{engine['title']:58}" + _rate(engine))
        if engine["reason"] is not None:
            lines.append(f"  {engine['status']}: {engine['reason']}")
        for peer in result["peers"].values():
            if (pairing := peer["against"][settings]) is not None:
                ratio = Ratio(*(pairing["ratio"][key] for key in ("estimate", "low", "high", "pairs")))
                same = f"{pairing['identical_requests']} of {result['work']['requests']}"
                lines.append(f"  {peer['title']:34}{ratio!s:22}{_rate(peer)}  {same}")
    lines += [
        f"{p['title']}: {p['status']}: {p['reason']}" for p in result["peers"].values() if p["reason"] is not None
    ]
    bars, titles = result["bars"], {name: engine["title"] for name, engine in result["engine"].items()}
    for name in ("bar", "goal"):
        if bars[name] is not None:
            against = sorted({each["against"] for each in bars["settings"].values() if each["ratio"] is not None})
            best = " and ".join(result["peers"][peer]["title"] for peer in against)
            lines.append(f"{name}: at least {bars[name]['at_least']}x {best}: {met_by(bars[name], titles)}")
    if (same := bars["identical_tokens"]) is not None:
        lines.append(f"bar: identical tokens where the weights are the same: {met_by(same, titles)}")
    if result["partial"]:
        lines.append("partial: it was ended before its last round")
    return "\n".join(lines)


def _rate(described: dict[str, Any]) -> str:
    rate = described["median_tokens_per_s"]
    return f"{'-' if rate is None else f'{rate:.1f}':>9}"


def met_by(bar: dict[str, Any], titles: dict[str, str]) -> str:
    """A bar's verdict, with the titles of the settings that met it."""
    return f"met by {' and '.join(titles[name] for name in bar['met_by'])}" if bar["met_by"] else "missed"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="inferdoc's engine against others on the same work")
    parser.add_argument("--work", choices=WORKS, default="cpu", help="tiny: random weights, to try the code")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="jobs of each engine; an interval needs 6")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, one where time is short")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds within which the last job should end")
    parser.add_argument(
        "--peers", help=f"of {', '.join(PEERS)}; by default all, with --quick {' and '.join(QUICK_PEERS)}"
    )
    parser.add_argument("--output", type=Path, help="write the result as JSON, after every round")
    options = parser.parse_args(arguments)
    if options.peers is None:
        options.peers = QUICK_PEERS if options.quick else list(PEERS)
    else:
        options.peers = [name for name in options.peers.split(",") if name]
    unknown = [name for name in options.peers if name not in PEERS]
    if unknown:
        parser.error(f"--peers {unknown[0]}: choose of {', '.join(PEERS)}")
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if options.quick:
        options.rounds = QUICK_ROUNDS
        options.limit = min(options.limit, QUICK_LIMIT_S)
    return options


def measure(
    work: Work,
    peers: Sequence[Peer],
    *,
    rounds: int,
    limit_s: float = math.inf,
    warm_tokens: int | None = None,
    save: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Everything about one comparison, as written to JSON.

    Args:
        limit_s: for all of it, the making of the weights included.
        warm_tokens: new tokens of the job to warm up; a whole job by default.
        save: called with what there is before the first round and after each, marked as partial.

    Raises:
        WorkerError: our own engine failed with all its settings.
        InputError: the weights are not to be had, or there is no card for work that needs one.
    """
    began = time.monotonic()
    device = find_device(work.device)
    folder = FOLDER / work.name
    folder.mkdir(parents=True, exist_ok=True)
    model = work.prepare(folder)
    prompts = draw_prompts(work)

    def result(ours: Sequence[Entrant], others: Sequence[Entrant], *, partial: bool) -> dict[str, Any]:
        return {
            "benchmark": "engine_vs_peers",
            "date": datetime.date.today().isoformat(),
            "partial": partial,
            "machine": machine(device),
            "work": {**work.describe(), "prompts": f"random tokens, seed {SEED}", "sampling": "greedy, forced length"},
            "rounds": rounds,
            **describe(ours, others, work),
        }

    ours, others = compare(
        start=lambda peer: peer.start(model, work),
        ours=[OURS[name] for name in work.settings],
        peers=peers,
        job=lambda worker: worker.run(prompts, work.new_tokens),
        rounds=rounds,
        limit_s=limit_s - (time.monotonic() - began),
        warm=lambda worker: worker.run(prompts, warm_tokens or work.new_tokens),
        after_round=lambda ours, others: save(result(ours, others, partial=True)),
    )
    return result(ours, others, partial=False)


def main() -> int:
    options = parse()
    end_on_signal()

    def save(result: dict[str, Any]) -> None:
        if options.output is not None:
            write_json(options.output, result)

    work = WORKS[options.work]
    if options.quick:
        work = replace(work, settings=work.settings[:1])  # compiling alone takes two minutes
    try:
        result = measure(
            work,
            [PEERS[name] for name in options.peers],
            rounds=options.rounds,
            limit_s=options.limit,
            warm_tokens=QUICK_WARM_TOKENS if options.quick else None,
            save=save,
        )
    except (InputError, WorkerError) as error:
        say(str(error))
        return 1
    print(report(result))
    save(result)
    return 1 if any(engine["reason"] is not None for engine in result["engine"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
