"""A rule in plain text: what it asks, why, on which thresholds, and from where."""

from __future__ import annotations

from collections.abc import Iterator

from inferdoc.rules.loading import LoadedRule, Pack
from inferdoc.rules.schema import Condition, Technique


def explain(loaded: LoadedRule, pack: Pack) -> str:
    """Several lines of text about one rule."""
    rule = loaded.rule
    lines = [
        f"{rule.id} (version {rule.version}): {rule.title}",
        f"from: {loaded.source}",
        f"question {loaded.question.number}: {loaded.question.text}",
        "",
        f"asks: {rule.asks}",
        f"why: {rule.why}",
    ]
    if loaded.requires:
        lines += ["", "requires, else not measured:"]
        for requirement in loaded.requires:
            lines += _condition(requirement.when, pack, "  ")
    lines += ["", "concludes, first that surely holds:"]
    for case in rule.cases:
        lines.append(f"  {case.conclude.value}{' (with a warning)' if case.warn else ''}, when")
        lines += _condition(case.when, pack, "    ") if case.when is not None else ["    nothing above holds"]
        if case.refuted_by:
            lines.append(f"    refuted by: {case.refuted_by}")
    if rule.refuted_by:
        lines += ["", f"refuted by: {rule.refuted_by}"]
    thresholds = _thresholds(loaded, pack)
    if thresholds:
        lines += ["", "thresholds and where they come from:", *thresholds]
    if rule.effects:
        lines += ["", "gains it may bring:"]
        for effect in rule.effects:
            lines.append(f"  {effect.gain} (for {', '.join(objective.value for objective in effect.serves)})")
    lines += ["", *_technique(pack.techniques[rule.technique], pack)]
    return "\n".join(lines)


def _condition(condition: Condition, pack: Pack, indent: str) -> list[str]:
    if condition.measure is not None:
        relation = "at least" if condition.at_least is not None else "below"
        return [f"{indent}{condition.measure} is {relation} {_threshold(condition, pack)}"]
    if condition.known is not None:
        return [f"{indent}{condition.known} is known"]
    if condition.objective is not None:
        return [f"{indent}the objective is {' or '.join(objective.value for objective in condition.objective)}"]
    if condition.slo is not None:
        return [f"{indent}an objective for {condition.slo} was given"]
    for head, parts in (
        ("all of", condition.all_),
        ("any of", condition.any_),
        ("not", condition.unless and [condition.unless]),
        ("it is shown that", condition.shown and [condition.shown]),
    ):
        if parts:
            return [f"{indent}{head}:", *(line for part in parts for line in _condition(part, pack, f"{indent}  "))]
    raise AssertionError("the schema allows no other kind of condition")


def _threshold(condition: Condition, pack: Pack) -> str:
    value, _ = pack.threshold(condition)
    name = condition.threshold
    return f"{value:g} ({name})" if isinstance(name, str) else f"{value:g}"


def _nodes(loaded: LoadedRule) -> Iterator[Condition]:
    for requirement in loaded.requires:
        yield from (node for _, node in requirement.when.walk())
    for case in loaded.rule.cases:
        if case.when is not None:
            yield from (node for _, node in case.when.walk())


def _thresholds(loaded: LoadedRule, pack: Pack) -> list[str]:
    """Each threshold once, with its source and the place of its constant."""
    lines: dict[str, None] = {}
    for node in _nodes(loaded):
        if node.measure is None:
            continue
        _, source = pack.threshold(node)
        name = node.threshold
        place = f" [{pack.sources[f'constants:{name}']}]" if isinstance(name, str) else ""
        lines[f"  {_threshold(node, pack)}: {source}{place}"] = None
    return list(lines)


def _technique(technique: Technique, pack: Pack) -> list[str]:
    lines = [
        f"technique {technique.id}: {technique.title} [{pack.sources[f'techniques:{technique.id}']}]",
        f"  improves: {', '.join(technique.improves)}",
        f"  costs: {technique.costs}",
        f"  complexity: {technique.complexity.level} ({technique.complexity.points:g} points; ranking divides by them)",
        f"  risk: {technique.risk}",
        f"  quality: {technique.quality_risk}",
    ]
    for name, engine in technique.engines.items():
        flags = f"{' '.join(engine.flags.split())}: " if engine.flags.strip() else ""
        lines.append(f"  {name}: {flags}{engine.meaning}")
    return [*lines, *(f"  see {reference}" for reference in technique.refs)]
