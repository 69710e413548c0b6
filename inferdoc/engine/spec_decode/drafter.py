"""Who drafts: the interface, nobody, and the choice by configuration. No torch until a draft model is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request
from inferdoc.engine.scheduler import Batch
from inferdoc.engine.spec_decode.ngram import NgramDrafter
from inferdoc.engine.spec_decode.synthetic import SyntheticDrafter
from inferdoc.errors import InputError

if TYPE_CHECKING:
    from inferdoc.engine.runner import ModelRunner


class Drafter(Protocol):
    """Called by the engine: `propose` before a step is scheduled, `follow` when it is known what the step computes."""

    def propose(self, running: Sequence[Request]) -> None:
        """Set `draft` of running requests that decode and have none. What cannot be checked is shortened later."""
        ...

    def follow(self, batch: Batch) -> None:
        """Compute for the prompts of this step what drafting will need."""
        ...


class NoDrafter:
    """Speculation is off."""

    def propose(self, running: Sequence[Request]) -> None:
        pass

    def follow(self, batch: Batch) -> None:
        pass


def make_drafter(
    config: EngineConfig,
    *,
    draft_runner: ModelRunner | None = None,
    vocabulary: int | None = None,
    outputs: Mapping[int, Sequence[int]] | None = None,
) -> Drafter:
    """The drafter for one engine under `config`; a fresh one for each engine.

    Args:
        draft_runner: for method 'draft': the draft model with a pool of its own, best as large as the target's.
        vocabulary: for method 'draft': logits of the target.
        outputs: for method 'synthetic': see there.

    Raises:
        InputError: method 'draft' without a runner, or with a pool that does not hold one sequence.
    """
    speculative = config.speculative_config
    if speculative is None:
        return NoDrafter()
    if speculative.method == "ngram":
        return NgramDrafter(speculative)
    if speculative.method == "synthetic":
        return SyntheticDrafter(speculative, outputs)
    if draft_runner is None or vocabulary is None:
        raise InputError("speculation by a draft model needs that model; without one there is method 'ngram'")
    from inferdoc.engine.spec_decode.draft import DraftModel

    return DraftModel(draft_runner, config, vocabulary=vocabulary)


def refuse_pair(
    target_tokens: Mapping[str, int], draft_tokens: Mapping[str, int], target_parameters: int, draft_parameters: int
) -> None:
    """Refuse a draft model that cannot draft for the target, or cannot pay.

    Args:
        target_tokens, draft_tokens: the tokenizers' ids by token.

    Raises:
        InputError: the vocabularies differ, or the draft has more parameters than the target.
    """
    common = sum(draft_tokens.get(token) == number for token, number in target_tokens.items())
    if common < len(target_tokens) or len(draft_tokens) != len(target_tokens):
        raise InputError(
            f"the draft model has another vocabulary: {common:,} of the target's {len(target_tokens):,} tokens have "
            f"the same id in it ({common / max(1, len(target_tokens)):.1%}; the draft has {len(draft_tokens):,}); "
            "use a draft of the target's family, or --draft-model none"
        )
    refuse_larger(target_parameters, draft_parameters)


def refuse_larger(target_parameters: int, draft_parameters: int) -> None:
    """
    Raises:
        InputError: the draft has more parameters than the target.
    """
    if draft_parameters > target_parameters:
        raise InputError(
            f"the draft model has {draft_parameters:,} parameters and the target {target_parameters:,}: drafting would "
            "cost more than it saves; are the two swapped?"
        )
