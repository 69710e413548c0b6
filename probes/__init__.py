"""What we measure: one file for each of the six questions.

A probe is a module with a `QUESTION`, `comparisons(context)` (the off/on pairs it wants run) and `observe(context)`
(what it works out from the trace, the sweep and the runs made; question 1 also sets each quantization up once). Probes
write evidence and never read a rule.
"""

from __future__ import annotations

from types import ModuleType


def all_probes() -> list[ModuleType]:
    """The six probes in the order of the questions; imported here because they need torch."""
    from inferdoc.probes import (
        disaggregation,
        hardware_fit,
        kv_fragmentation,
        output_variance,
        prefix_redundancy,
        token_latency,
    )

    return [hardware_fit, prefix_redundancy, output_variance, kv_fragmentation, token_latency, disaggregation]
