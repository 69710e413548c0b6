"""Our engine against others on the same work. On a CPU: SmolLM2-135M in float32, 32 requests at once.

    python benchmarks/engine_vs_peers.py --quick                 under 5 minutes, no interval
    python benchmarks/engine_vs_peers.py                         at least 6 pairs for each peer
    python benchmarks/engine_vs_peers.py --work cuda             on a card: 8B shape, 64 requests of 1k in, 256 out

Each engine loads once in a process of its own and does one job to warm up. Then pairs of jobs, ours and a peer's one
after the other (first ours first, then the peer first, and so on), all peers in turn; one value for each job: output
tokens a second. Only one engine computes at a time, with all cores; the others are stopped. A peer that is missing or
fails is reported with its reason.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from peers.comparison import Ratio, first_divergences
from peers.machine import machine
from peers.process import Job, Worker, WorkerError, end_on_signal
from peers.registry import OURS, PEERS, ROOT, WORKS, Peer, Work

from inferdoc.devices import find_device
from inferdoc.errors import InputError

FOLDER = ROOT / "build" / "benchmarks"
SEED = 0
QUICK_PAIRS = 2
QUICK_LIMIT_S = 240.0
QUICK_PEERS = [name for name in PEERS if name != "transformers-continuous"]
"""The one that is left out takes as long for a job as all the others together, and is far from the best."""


@dataclass
class Comparison:
    """What was seen of one peer. `reason` is set where it is missing or failed; pairs until then stay."""

    peer: Peer
    facts: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    divergences: dict[int, int] = field(default_factory=dict)
    """Request to first differing position, of all jobs (the earliest)."""

    @property
    def ratio(self) -> Ratio | None:
        return Ratio.of(self.ours, self.theirs) if self.ours else None

    def add(self, ours: Job, theirs: Job) -> None:
        self.ours.append(ours.tokens_per_s)
        self.theirs.append(theirs.tokens_per_s)
        for request, position in first_divergences(ours.tokens, theirs.tokens).items():
            self.divergences[request] = min(position, self.divergences.get(request, position))

    def describe(self, requests: int) -> dict[str, Any]:
        ratio = self.ratio
        return {
            "title": self.peer.title,
            "status": "measured" if self.reason is None else "failed" if self.ours else "not available",
            "reason": self.reason,
            "facts": self.facts,
            "same_weights": self.peer.same_weights,
            "tokens_per_s": {"ours": self.ours, "peer": self.theirs},
            "median_tokens_per_s": statistics.median(self.theirs) if self.theirs else None,
            "ratio": None if ratio is None else ratio.describe(),
            "identical_requests": requests - len(self.divergences) if self.ours else None,
            "first_divergences": self.divergences,
        }


def draw_prompts(work: Work) -> list[list[int]]:
    """Random tokens, all prompts of one length; the first 16 ids are left out (control tokens)."""
    tokens = np.random.default_rng(SEED).integers(16, work.vocabulary, (work.requests, work.prompt_tokens))
    return [list(map(int, row)) for row in tokens]


def run_pair(ours: Worker, theirs: Worker, job: Callable[[Worker], Job], *, ours_first: bool) -> tuple[Job, Job]:
    """One job of each, one after the other."""
    if ours_first:
        first, second = job(ours), job(theirs)
        return first, second
    second, first = job(theirs), job(ours)
    return first, second


def compare(
    start: Callable[[Peer], Worker],
    peers: Sequence[Peer],
    job: Callable[[Worker], Job],
    pairs: int,
    limit_s: float = math.inf,
) -> tuple[dict[str, Any], list[Comparison]]:
    """Facts about our engine, and a comparison for each peer. Past the limit no pair begins but everyone's first.

    Raises:
        WorkerError: our own engine failed.
    """
    end = time.monotonic() + limit_s
    workers: dict[str, Worker] = {}
    comparisons = [Comparison(peer) for peer in peers]
    try:
        ours = workers[OURS.name] = start(OURS)
        say(f"{OURS.title}: loaded")
        job(ours)
        for comparison in comparisons:
            name = comparison.peer.name
            try:
                workers[name] = start(comparison.peer)
                comparison.facts = workers[name].facts
                warm = job(workers[name])
                say(f"{comparison.peer.title}: loaded; warm-up {warm.seconds:.1f} s")
            except WorkerError as error:
                comparison.reason = str(error)
                say(f"{comparison.peer.title}: not available: {error}")
        for pair in range(pairs):
            for comparison in comparisons:
                if comparison.reason is None and (pair == 0 or time.monotonic() < end):
                    _measure(comparison, ours, workers[comparison.peer.name], job, ours_first=pair % 2 == 0)
        return ours.facts, comparisons
    finally:
        for worker in workers.values():
            worker.close()


def _measure(
    comparison: Comparison, ours: Worker, theirs: Worker, job: Callable[[Worker], Job], *, ours_first: bool
) -> None:
    try:
        mine, other = run_pair(ours, theirs, job, ours_first=ours_first)
    except WorkerError as error:
        if not theirs.ended:
            raise
        comparison.reason = f"failed after {len(comparison.ours)} pairs: {error}"
        say(f"{comparison.peer.title}: {comparison.reason}")
        return
    comparison.add(mine, other)
    say(
        f"{comparison.peer.title}: {mine.tokens_per_s:.1f} ours, {other.tokens_per_s:.1f} theirs "
        f"({mine.tokens_per_s / other.tokens_per_s:.3f}x)"
    )


def judge(comparisons: Sequence[Comparison], work: Work) -> dict[str, Any]:
    """The bars, over the peers that were measured. The best peer is the one with the lowest ratio of ours over it."""
    ratios = {c.peer.name: ratio for c in comparisons if (ratio := c.ratio) is not None}
    best = min(ratios, key=lambda name: ratios[name].estimate, default=None)
    against = work.bar_peer or best
    ratio = ratios.get(against) if against is not None else None
    identical = not any(c.divergences for c in comparisons if c.ours and c.peer.same_weights)
    return {
        "best_peer": best,
        "against": against,
        "ratio": None if ratio is None else ratio.describe(),
        "identical_tokens": identical if work.exact and ratios else None,
        **{
            name: None if ratio is None or least is None else {"at_least": least, "met": ratio.estimate >= least}
            for name, least in (("bar", work.bar), ("goal", work.goal))
        },
    }


def report(result: dict[str, Any]) -> str:
    lines = ["", f"{'peer':36}{'ours / peer, 95% interval':44}{'peer tokens/s':>14}  identical outputs"]
    for entry in result["peers"].values():
        if entry["ratio"] is None:
            lines.append(f"{entry['title']:36}{entry['status']}: {entry['reason']}")
            continue
        ratio = Ratio(*(entry["ratio"][key] for key in ("estimate", "low", "high", "pairs")))
        same = f"{entry['identical_requests']} of {result['work']['requests']}"
        lines.append(f"{entry['title']:36}{ratio!s:44}{entry['median_tokens_per_s']:14.1f}  {same}")
        if entry["reason"] is not None:
            lines.append(f"{'':36}{entry['reason']}")
    bars = result["bars"]
    for name in ("bar", "goal"):
        if bars[name] is not None:
            title = result["peers"][bars["against"]]["title"]
            lines.append(f"{name}: at least {bars[name]['at_least']}x {title}: {_met(bars[name]['met'])}")
    if bars["identical_tokens"] is not None:
        lines.append(f"bar: identical tokens where the weights are the same: {_met(bars['identical_tokens'])}")
    return "\n".join(lines)


def _met(met: bool) -> str:
    return "met" if met else "missed"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="inferdoc's engine against others on the same work")
    parser.add_argument("--work", choices=WORKS, default="cpu", help="tiny: random weights, to try the code")
    parser.add_argument("--pairs", type=int, default=6, help="pairs of jobs for each peer; an interval needs 6")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_PAIRS} pairs, one where time is short")
    parser.add_argument("--limit", type=float, help="seconds after which no further pair begins")
    parser.add_argument("--peers", help=f"of {', '.join(PEERS)}; by default all, with --quick the faster ones")
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    options = parser.parse_args(arguments)
    if options.peers is None:
        options.peers = QUICK_PEERS if options.quick else list(PEERS)
    else:
        options.peers = [name for name in options.peers.split(",") if name]
    unknown = [name for name in options.peers if name not in PEERS]
    if unknown:
        parser.error(f"--peers {unknown[0]}: choose of {', '.join(PEERS)}")
    if options.pairs < 1:
        parser.error("--pairs: at least 1")
    if options.quick:
        options.pairs = QUICK_PAIRS
        options.limit = QUICK_LIMIT_S
    return options


def measure(work: Work, peers: Sequence[Peer], *, pairs: int, limit_s: float = math.inf) -> dict[str, Any]:
    """Everything about one comparison, as written to JSON.

    Raises:
        WorkerError: our own engine failed.
        InputError: the weights are not to be had, or there is no card for work that needs one.
    """
    device = find_device(work.device)
    folder = FOLDER / work.name
    folder.mkdir(parents=True, exist_ok=True)
    model = work.prepare(folder)
    prompts = draw_prompts(work)
    facts, comparisons = compare(
        start=lambda peer: peer.start(model, work),
        peers=peers,
        job=lambda worker: worker.run(prompts, work.new_tokens),
        pairs=pairs,
        limit_s=limit_s,
    )
    return {
        "benchmark": "engine_vs_peers",
        "date": datetime.date.today().isoformat(),
        "machine": machine(device),
        "work": {**work.describe(), "prompts": f"random tokens, seed {SEED}", "sampling": "greedy, forced length"},
        "engine": facts,
        "peers": {c.peer.name: c.describe(work.requests) for c in comparisons},
        "bars": judge(comparisons, work),
    }


def main() -> int:
    options = parse()
    end_on_signal()
    try:
        result = measure(
            WORKS[options.work],
            [PEERS[name] for name in options.peers],
            pairs=options.pairs,
            limit_s=math.inf if options.limit is None else options.limit,
        )
    except (InputError, WorkerError) as error:
        say(str(error))
        return 1
    print(report(result))
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
