"""What is drafted, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inferdoc.errors import InputError


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """One drafter. Names follow vLLM's ``--speculative-config``.

    Raises:
        InputError: values that cannot run.
    """

    method: Literal["ngram", "draft", "synthetic"]
    num_speculative_tokens: int
    """Drafted at each step of a request, at most."""
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    """Shortest and longest suffix that the n-gram drafter looks up."""
    acceptance: tuple[float, ...] = ()
    """Synthetic: the chance that a position is accepted, given that the positions before it were."""

    def __post_init__(self) -> None:
        if self.num_speculative_tokens < 1:
            raise InputError(f"num_speculative_tokens is {self.num_speculative_tokens}; it must be at least 1")
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise InputError(
                f"prompt_lookup_min {self.prompt_lookup_min} to prompt_lookup_max {self.prompt_lookup_max} is no range "
                "of n-gram lengths"
            )
        if self.method == "synthetic" and len(self.acceptance) != self.num_speculative_tokens:
            raise InputError(
                f"synthetic drafts of {self.num_speculative_tokens} tokens need as many acceptance rates, not "
                f"{len(self.acceptance)}"
            )
        if not all(0 <= rate <= 1 for rate in self.acceptance):
            raise InputError(f"acceptance rates are shares between 0 and 1, not {self.acceptance}")
