"""Advice in order: what the user's objective gains for each point of complexity.

    score = max over the rule's effects of  weight(objective, metric) x ln(sure gain)  /  complexity points

The sure gain is the low end of the effect's interval, so a wide interval ranks below a narrow one with the same centre;
the logarithm makes 2x and then 2x worth as much as 4x; the maximum, not the sum, because metrics of one change overlap.
Weights stand in the pack's ``objectives``, points in its ``techniques``. Equal scores keep the order of the questions.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from inferdoc.evidence import Change, Conclusion, Expected, Finding, Quantity, Recommendation
from inferdoc.rules import wording
from inferdoc.rules.conclusions import Concluded
from inferdoc.rules.facts import sure_gain
from inferdoc.rules.reading import Reader
from inferdoc.rules.schema import EngineSetting

_REPLACED = ("-o", "--output", "--question")
"""Options of the run that a check of one recommendation sets itself."""


def recommend(concluded: Sequence[Concluded], reader: Reader) -> list[Recommendation]:
    """One recommendation for each technique that is recommended, best first."""
    chosen = [item for item in concluded if item.finding.conclusion is Conclusion.RECOMMENDED]
    ranked: dict[str, Concluded] = {}
    for item in sorted(chosen, key=lambda item: -score(item, reader)):
        ranked.setdefault(item.finding.technique, item)
    return [_recommendation(item, rank, reader) for rank, item in enumerate(ranked.values(), start=1)]


def score(item: Concluded, reader: Reader) -> float:
    """The rank's formula; 0 where no effect was measured."""
    weighting = reader.pack.objectives[reader.evidence.run.objective]
    benefits = [
        weighting.weights.get(effect.metric_name, weighting.elsewhere)
        * math.log(max(1.0, sure_gain(reader.quantity(effect.gain))))
        for effect in item.loaded.rule.effects
    ]
    return max(benefits, default=0.0) / reader.pack.techniques[item.finding.technique].complexity.points


def _recommendation(item: Concluded, rank: int, reader: Reader) -> Recommendation:
    rule = item.loaded.rule
    technique = reader.pack.techniques[rule.technique]
    setting = rule.change
    assert setting is not None, "the schema asks every rule that can recommend for its change"
    change = Change(knob=setting.knob, from_=reader.fill(setting.from_), to=reader.fill(setting.to))
    return Recommendation(
        id=rule.id,
        rank=rank,
        technique=rule.technique,
        title=technique.title,
        change=change,
        expected=[*_expected(item, reader), *_losses(item, reader)],
        adds=_adds(rule.technique, reader),
        effort=technique.complexity.level,
        risk=technique.risk,
        quality_risk=technique.quality_risk,
        conflicts=[reader.pack.techniques[id].title for id in technique.conflicts],
        replaces=[reader.pack.techniques[id].title for id in technique.replaces],
        engine_flags={name: _flags(engine, change.to) for name, engine in technique.engines.items()},
        verify_command=verify_command(reader.evidence.run.command, item.finding),
        refs=list(technique.refs),
        finding=rule.id,
    )


def _expected(item: Concluded, reader: Reader) -> list[Expected]:
    """The known effects, those of the user's objective first."""
    objective = reader.evidence.run.objective
    effects = sorted(item.loaded.rule.effects, key=lambda effect: objective not in effect.serves)
    expected = []
    for effect in effects:
        quantity = reader.quantity(effect.gain)
        if quantity.value is not None:
            comparison = reader.comparison_of(effect.gain)
            label = comparison.metrics[effect.metric_name].label if comparison else quantity.label
            expected.append(_factor(effect.metric_name, label, quantity))
    return expected


def _losses(item: Concluded, reader: Reader) -> list[Expected]:
    """What the change costs: every metric of the rule's comparisons that is shown to become worse."""
    effects = {effect.gain for effect in item.loaded.rule.effects}
    comparisons = reader.comparisons(item.loaded)
    losses = []
    for comparison in comparisons:
        for metric, paired in comparison.metrics.items():
            interval = paired.gain.interval
            counted = f"{comparison.id}.{metric}.gain" in effects
            if not counted and paired.gain.value is not None and interval is not None and interval.high < 1:
                several = sum(metric in other.metrics for other in comparisons) > 1
                label = f"{paired.label} ({comparison.load.partition(' at ')[0]})" if several else paired.label
                losses.append(_factor(metric, label, paired.gain))
    return losses


def verify_command(command: str, finding: Finding) -> str:
    """The run's own command, for the finding's question alone and into a folder of its own."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    kept = []
    rest = iter(words)
    for word in rest:
        if word in _REPLACED:
            next(rest, None)
        elif not word.startswith("-o") and word.partition("=")[0] not in _REPLACED:
            kept.append(word)
    kept += ["--question", str(finding.question.number), "-o", f"verify-{finding.technique}"]
    return shlex.join(kept)


def _adds(technique: str, reader: Reader) -> Expected | None:
    quantity = reader.evidence.lookup(f"stack.{technique}.adds")
    return _factor("stack", quantity.label, quantity) if quantity is not None and quantity.value is not None else None


def _factor(metric: str, label: str, quantity: Quantity) -> Expected:
    interval = quantity.interval
    return Expected(
        metric=metric,
        label=label,
        estimate=quantity.value,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        basis=quantity.basis,
    )


def expected_text(expected: Expected) -> str:
    """``output tokens per second 1.71x to 1.95x better (measured here)``; *better* only of an interval above 1."""
    low, high, basis = expected.low, expected.high, expected.basis.value
    if low is None or high is None:
        return f"{expected.label} {range_text(expected)}, no interval ({basis})"
    if low <= 1 <= high:
        return f"{expected.label}: no difference shown ({wording.times(low)}..{wording.times(high)}, {basis})"
    return f"{expected.label} {range_text(expected)} {'better' if low > 1 else 'as good'} ({basis})"


def range_text(expected: Expected) -> str:
    """``1.71x to 1.95x``, or the estimate alone where it has no interval."""
    if expected.low is not None and expected.high is not None:
        return f"{wording.times(expected.low)} to {wording.times(expected.high)}"
    return wording.times(expected.estimate) if expected.estimate is not None else "by an unknown factor"


def _flags(engine: EngineSetting, to: str) -> str:
    """The flags with their meaning as a shell comment, so that a copied line runs as it is."""
    flags = engine.flags.replace("{to}", to)
    return f"{flags}  # {engine.meaning}".strip()
