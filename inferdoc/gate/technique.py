"""A technique that one arm switches and the other does not: the pairs themselves are its off/on comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from inferdoc.devices import Watch
from inferdoc.diagnosis import evidence_of_context
from inferdoc.engine.engine import RunResult
from inferdoc.evidence import Evidence
from inferdoc.gate.arms import Bench, Name
from inferdoc.gate.diagnosis_change import switched_change, undecided_switch
from inferdoc.gate.paired_run import PairedRun
from inferdoc.gate.pairing import Pairing
from inferdoc.gate.policy import DiagnosisPolicy
from inferdoc.gate.result import DiagnosisChange
from inferdoc.probes import all_probes
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.metrics import measure, overloaded
from inferdoc.probes.paired import Measured, Trial, summarise
from inferdoc.probes.paired import Pair as ProbePair
from inferdoc.probes.stack import SWITCHES
from inferdoc.rules import Pack, diagnose


@dataclass(frozen=True)
class Switched:
    """A technique that one arm has on and the other off."""

    technique: str
    on: Name
    """The arm that has it on."""
    alone: bool
    """Nothing else differs between the arms, so that the pairs show what it does."""


def switched_techniques(bench: Bench) -> list[Switched]:
    """Every technique that the arms switch."""
    baseline, candidate = bench.configs["baseline"], bench.configs["candidate"]
    different = baseline.difference(candidate)
    found = []
    for technique, (off, on) in SWITCHES.items():
        (field,) = off
        before, after = getattr(baseline, field), getattr(candidate, field)
        if before != after and {before, after} == {off[field], on[field]}:
            alone = bench.shared and different == [field]
            found.append(Switched(technique, "candidate" if after == on[field] else "baseline", alone))
    return found


def switched_changes(run: PairedRun, pack: Pack, policy: DiagnosisPolicy) -> list[DiagnosisChange]:
    """What it means for the diagnosis that the arms switch techniques; of the questions that the policy asks."""
    changes = []
    for switched in switched_techniques(run.bench):
        evidence = evidence_of_pairs(run.bench, switched, run.pairing, run.watch) if switched.alone else None
        findings = diagnose(evidence, pack).findings if evidence is not None else []
        about = next((finding for finding in findings if finding.technique == switched.technique), None)
        if about is not None:
            change = switched_change(about, on=switched.on, policy=policy)
        else:
            rule = next(rule for rule in pack.rules if rule.rule.technique == switched.technique)
            change = undecided_switch(rule.question, switched.technique, rule.rule.title, on=switched.on, policy=policy)
        if not policy.questions or change.question.number in policy.questions:
            changes.append(change)
    return changes


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
