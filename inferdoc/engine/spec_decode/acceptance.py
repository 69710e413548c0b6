"""What acceptance means for speed. Definitions of Leviathan et al., arXiv 2211.17192; other tools' differ.

alpha: the chance that a drafted token is accepted, given that those before it in the draft were. vLLM's *draft
acceptance rate*, accepted / drafted, is lower, since tokens after a rejected one count as drafted: 0.54 for alpha 0.8
and 5 drafted.
"""

from __future__ import annotations


def estimate_alpha(accepted: int, rejected_drafts: int) -> float | None:
    """accepted / (accepted + drafts with a rejection): the maximum likelihood of a truncated geometric distribution.

    Args:
        accepted: drafted tokens that were accepted.
        rejected_drafts: drafts of which some token was rejected.

    Returns:
        ``None`` where nothing was judged.
    """
    judged = accepted + rejected_drafts
    return accepted / judged if judged else None


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens emitted by a step that checks k drafted ones: (1 - alpha^(k+1)) / (1 - alpha), the model's own included.

    Leviathan et al., equation 1; it takes every place to be accepted alike, independently of the others.
    """
    return sum(alpha**i for i in range(k + 1))


def speedup(alpha: float, k: int, cost_ratio: float, verify_ratio: float = 1.0) -> float:
    """Time of plain decoding over that with k drafted tokens a step: expected tokens / (k * cost_ratio + verify_ratio).

    Leviathan et al., theorem 3.8, where checking costs as much as a plain step (`verify_ratio` 1).

    Args:
        cost_ratio: the drafter's time for one token over the target's plain step; theirs is c.
        verify_ratio: the target's step with k + 1 tokens a row over its plain step at the same batch.
    """
    return expected_tokens(alpha, k) / (k * cost_ratio + verify_ratio)
