"""A technique that one arm switches and the other does not: the pairs themselves are its off/on comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from inferdoc.devices import Watch
from inferdoc.diagnosis import evidence_of_context
from inferdoc.engine.engine import RunResult
from inferdoc.evidence import Evidence
from inferdoc.gate.arms import Bench, Name
from inferdoc.gate.pairing import Pairing
from inferdoc.probes import all_probes
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.metrics import measure, overloaded
from inferdoc.probes.paired import Measured, Trial, summarise
from inferdoc.probes.paired import Pair as ProbePair
from inferdoc.probes.stack import SWITCHES


@dataclass(frozen=True)
class Switched:
    """The one technique in which the arms differ."""

    technique: str
    on: Name
    """The arm that has it on."""


def switched_technique(bench: Bench) -> Switched | None:
    """The technique that the arms switch, where that is all that differs between them."""
    if not bench.shared:
        return None
    baseline, candidate = bench.arm("baseline").config, bench.arm("candidate").config
    different = baseline.difference(candidate)
    if len(different) != 1:
        return None
    (field,) = different
    before, after = getattr(baseline, field), getattr(candidate, field)
    for technique, (off, on) in SWITCHES.items():
        if field in off and {before, after} == {off[field], on[field]}:
            return Switched(technique, "candidate" if after == on[field] else "baseline")
    return None


def evidence_of_pairs(bench: Bench, switched: Switched, pairing: Pairing, watch: Watch) -> Evidence | None:
    """What the pairs say about the technique, as evidence for the rules; ``None`` where no probe compares it so."""
    arms: dict[Literal["off", "on"], Name] = {"on": switched.on, "off": _other(switched.on)}
    context = bench.arm(switched.on).context
    for probe in all_probes():
        planned = [
            replace(
                pair,
                off=bench.arm(arms["off"]).config,
                on=bench.arm(arms["on"]).config,
                load_label=pairing.open_label if pair.load == "open" else None,
            )
            for pair in probe.comparisons(context)
            if pair.technique == switched.technique and pair.trial is None
        ]
        if not planned:
            continue
        for pair in planned:
            measured = Measured()
            for arm, name in arms.items():
                for each in pairing.pairs:
                    run = each.runs[name].saturated if pair.load == "saturated" else each.runs[name].open
                    if run is not None:
                        measured.trials[arm].append(_trial(context, pair, run))
                        context.runs.setdefault(pair.id, {})[arm] = run
            if measured.pairs:
                context.found.comparisons[pair.id] = summarise(context, pair, measured, None)
        probe.observe(context)
        return evidence_of_context(bench.plans[switched.on].options, context, bench.arm(switched.on).config, watch)
    return None


def _trial(context: ProbeContext, pair: ProbePair, run: RunResult) -> Trial:
    late = pair.load == "open" and overloaded(run)
    return Trial(measure(run, pair.metrics, context.settings.slo), run, late)


def _other(name: Name) -> Name:
    return "baseline" if name == "candidate" else "candidate"
