"""What to do after a gate, in one or two sentences."""

from __future__ import annotations

from collections.abc import Sequence

from inferdoc.gate.result import DiagnosisChange, GateVerdict, MetricResult, MetricVerdict


def next_step(
    verdict: GateVerdict, results: Sequence[MetricResult], changes: Sequence[DiagnosisChange], command: str
) -> str:
    """The next step for this verdict, with the command where there is one."""
    match verdict:
        case GateVerdict.PASSED:
            warned = [result.metric for result in results if result.verdict.fails and result.role == "warn"]
            return f"look at what warned: {', '.join(warned)}" if warned else "nothing to do"
        case GateVerdict.REGRESSED:
            worse = [result.metric for result in results if result.verdict.fails and result.role == "fail"]
            changed = [change.title for change in changes if change.outcome == "fail"]
            return f"find what changed {', '.join([*worse, *changed])}; measure again with: {command}"
        case GateVerdict.INCONCLUSIVE:
            return _to_decide(results)
        case GateVerdict.NOT_COMPARABLE:
            return "mend what differs, or declare it under [comparable] may_vary"
        case GateVerdict.INVALID:
            return "mend what failed, then measure again"
        case GateVerdict.INTERRUPTED:
            return f"measure again: {command}"
        case GateVerdict.RECORDED:
            return "compare the next one with it"


def _to_decide(results: Sequence[MetricResult]) -> str:
    undecided = [r for r in results if r.verdict is MetricVerdict.INCONCLUSIVE and r.role == "fail"]
    needed = [result.pairs_needed for result in undecided if result.pairs_needed]
    names = ", ".join(result.metric for result in undecided)
    if needed:
        return f"some {max(needed)} pairs would decide {names}: raise [design] max_pairs or [workload] requests"
    return f"see why {names} could not be decided" if names else "see which changes of the diagnosis are undecided"
