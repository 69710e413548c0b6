"""Drafts that are accepted at given rates: what a drafter of that quality would do for speed, without having one.

Whether a drafted token is accepted is drawn by request and position before the step; the model computes the step as for
any draft, its finding is overruled. What is emitted at accepted places is the draft itself:

    with `outputs`     the tokens that plain decoding gave this request, so that the outputs are those of plain decoding
    without            the prompt's tokens in turn: the work is right, the text is not, and says nothing about quality

The token after the accepted ones is the model's own. Drafting costs nothing here; a drafter's step time is added by who
models it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferdoc.engine.request import Request
from inferdoc.engine.sampling import ACCEPT, SamplingParams
from inferdoc.engine.scheduler import Batch
from inferdoc.engine.spec_decode.config import SpeculativeConfig
from inferdoc.engine.spec_decode.proposal import Draft, wanted


class SyntheticDrafter:
    """Accepts each place of a draft at its rate.

    Args:
        config: with the rates, each given that the places before it were accepted.
        outputs: of plain decoding, by request id, whole.
        seed: of the coins.
    """

    def __init__(
        self, config: SpeculativeConfig, outputs: Mapping[int, Sequence[int]] | None = None, seed: int = 0
    ) -> None:
        self._config = config
        self._outputs = outputs
        self._coins = SamplingParams(seed=seed)

    def propose(self, running: Sequence[Request]) -> None:
        for request in running:
            if most := wanted(request, self._config.num_speculative_tokens):
                request.draft = Draft(self._tokens(request, most), accepted=self._accepted(request, most))

    def follow(self, batch: Batch) -> None:
        """There is no model that would have to compute the prompts too."""

    def _tokens(self, request: Request, count: int) -> list[int]:
        place = len(request.tokens) - request.prompt_length
        if self._outputs is not None:
            return list(self._outputs[request.id][place : place + count])
        return [request.tokens[(place + i) % request.prompt_length] for i in range(count)]

    def _accepted(self, request: Request, count: int) -> int:
        position = len(request.tokens)
        for place, rate in enumerate(self._config.acceptance[:count]):
            if self._coins.uniform(request.id, position + place, ACCEPT) >= rate:
                return place
        return count
