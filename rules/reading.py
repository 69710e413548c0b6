"""Evidence as the rules see it: every id has a quantity, and a missing one says why it is missing."""

from __future__ import annotations

from inferdoc.evidence import Basis, Comparison, Evidence, Quantity, Question, TraceWindow
from inferdoc.rules import wording
from inferdoc.rules.conditions import View
from inferdoc.rules.loading import LoadedRule, Pack

_NAMESPACE = {
    "fit": Question.HARDWARE_FIT,
    "prefix": Question.PREFIX_REDUNDANCY,
    "variance": Question.OUTPUT_VARIANCE,
    "fragmentation": Question.KV_FRAGMENTATION,
    "latency": Question.TOKEN_LATENCY,
    "disagg": Question.DISAGGREGATION,
}
_ARMS = ("gain", "off", "on")
NOT_RUN = "this run did not measure "
"""How the reason begins where nothing better is known."""


class Reader:
    """Evidence as the rules see it: every id has a quantity, a missing one with the reason why."""

    def __init__(self, evidence: Evidence, pack: Pack, window: TraceWindow | None = None) -> None:
        """
        Args:
            window: what was worked out over it stands for what was worked out over the whole trace.
        """
        self.evidence = evidence
        self._of_window = window.quantities if window else {}
        self.pack = pack
        self.view = View(
            quantity=self.quantity,
            threshold=pack.threshold,
            objective=evidence.run.objective,
            slo_metrics=[slo.metric for slo in evidence.run.slo],
        )
        self._constants = {name: constant.value for name, constant in pack.constants.items()}

    def quantity(self, id: str) -> Quantity:
        """The quantity under the id that a rule asks for, without a value where the evidence has none."""
        found = self._of_window.get(id) or self.evidence.lookup(id)
        if found is not None:
            return found if found.id == id else found.model_copy(update={"id": id})
        return Quantity(id=id, label=id, value=None, unit="", basis=Basis.MEASURED, reason=self._why_missing(id))

    def fill(self, template: str) -> str:
        """The text with every ``{placeholder}`` replaced by its number."""
        return wording.fill(template, self.quantity, self._constants)

    def comparison_of(self, id: str) -> Comparison | None:
        """The comparison that the effect `id` (``<comparison>.<metric>.gain|off|on``) belongs to."""
        name = _comparison_id(id)
        return self.evidence.comparisons.get(name) if name else None

    def _why_missing(self, id: str) -> str:
        comparison = self.comparison_of(id)
        if comparison is not None and comparison.failure:
            return comparison.failure
        name = _comparison_id(id)
        for step in self.evidence.plan:
            if step.dropped and name is not None and (step.id == name or name.startswith(f"{step.id}.")):
                return step.dropped
        question = comparison.question if comparison else _NAMESPACE.get(id.partition(".")[0])
        if question is None and name is not None:
            technique = name.partition(".")[0]
            question = next((rule.question for rule in self.pack.rules if rule.rule.technique == technique), None)
        for probe in self.evidence.probes:
            if probe.question is question and probe.status != "measured" and probe.reason:
                return probe.reason
        if self.evidence.run.status != "complete":
            return "the run ended before this was measured"
        return f"{NOT_RUN}{id}"

    def comparisons(self, loaded: LoadedRule) -> list[Comparison]:
        """The comparisons that the rule's effects and conditions look at, each once."""
        ids = [effect.gain for effect in loaded.rule.effects]
        ids += [node.measure for _, node in loaded.rule.conditions() if node.measure is not None]
        found = {comparison.id: comparison for id in ids if (comparison := self.comparison_of(id)) is not None}
        return list(found.values())


def _comparison_id(id: str) -> str | None:
    head, _, arm = id.rpartition(".")
    name = head.rpartition(".")[0]
    return name if arm in _ARMS and name else None
