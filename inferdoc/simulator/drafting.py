"""Drafts on modelled time: of given acceptance, at a given price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request
from inferdoc.engine.spec_decode.config import SpeculativeConfig
from inferdoc.engine.spec_decode.drafter import Drafter, NoDrafter
from inferdoc.engine.spec_decode.synthetic import SyntheticDrafter
from inferdoc.simulator.steptime import VirtualClock


class ModelledDrafter(SyntheticDrafter):
    """Synthetic acceptance whose drafting moves the clock: by one step of the drafter for each place of the longest."""

    def __init__(self, config: SpeculativeConfig, clock: VirtualClock, seconds: float) -> None:
        super().__init__(config)
        self._clock = clock
        self._seconds = seconds

    def propose(self, running: Sequence[Request]) -> None:
        before = {request for request in running if request.draft is not None}
        super().propose(running)
        drafts = [r.draft for r in running if r.draft is not None and r not in before]
        self._clock.advance(self._seconds * max((len(draft.tokens) for draft in drafts), default=0))


def modelled_drafter(
    config: EngineConfig, clock: VirtualClock, *, acceptance: Sequence[float] = (), seconds: float = 0.0
) -> Drafter:
    """The drafter of a predicted run, for any method.

    Args:
        acceptance: chance of each place, given those before it; places without one, and so all by default, are
            rejected: a prediction without knowledge comes out too long rather than too short. Method 'synthetic' has
            its own.
        seconds: of the drafter for one token of each request; 0 is an n-gram lookup.
    """
    speculative = config.speculative_config
    if speculative is None:
        return NoDrafter()
    if speculative.method != "synthetic":
        count = speculative.num_speculative_tokens
        rates = (*acceptance, *[0.0] * count)[:count]
        speculative = replace(speculative, method="synthetic", acceptance=rates)
    return ModelledDrafter(speculative, clock, seconds)
