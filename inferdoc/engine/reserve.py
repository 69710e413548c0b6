"""Reservation policies: how much KV a request takes at admission, and when it is admitted at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request


class PagedReservation:
    """Blocks are taken as they fill; nothing is reserved ahead."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    def contiguous(self, request: Request) -> int | None:
        """Tokens to reserve in one consecutive run at admission; ``None``: none."""
        return None

    def at_most(self, request: Request) -> int:
        """Tokens of KV that the request holds at its peak; the last token's are never computed."""
        return self.contiguous(request) or request.max_length - 1

    def foresees_room(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether the request may join those that run; whether its present tokens have room is another question."""
        return True


class MaxModelLenReservation(PagedReservation):
    """Every request reserves the longest sequence that the server allows."""

    def contiguous(self, request: Request) -> int | None:
        return self.config.max_model_len


class PerRequestReservation(PagedReservation):
    """Prompt + declared maximum; without one, prompt + output rounded up to a power of two."""

    def contiguous(self, request: Request) -> int | None:
        tokens = per_request_tokens(request.prompt_length, request.output_length, request.declared_max)
        return min(tokens, self.config.max_model_len)


class PeakForecastReservation(PagedReservation):
    """Blocks are taken as they fill, but a request is admitted only where the peak of all running ones fits the pool.

    An output is taken to be as long as the request declares; without a declaration, as long as it will be, which a
    server would have to guess. Where no output exceeds that, nothing is ever preempted. A block that requests share
    counts for each of them.
    """

    def foresees_room(self, request: Request, running: Sequence[Request]) -> bool:
        if not running:
            return True  # alone, any request that the pool can hold runs to its end
        requests = [*running, request]
        # In a static batch all stay until the last is done; with drafts nobody knows who goes ahead of whom.
        if self.config.batching == "static" or self.config.speculative_config is not None:
            size = self.config.block_size
            return sum(-(-self._final(each) // size) for each in requests) <= self.config.num_kv_blocks
        growths = [self._growth(each) for each in running]
        tokens, steps = self._growth(request)
        growths.append((tokens, steps + self._delay(request)))
        return forecast_peak(growths, self.config.block_size) <= self.config.num_kv_blocks

    def _final(self, request: Request) -> int:
        """Tokens of KV at the end, as declared."""
        declared = request.declared_max or request.output_length
        return min(request.prompt_length + declared, self.config.max_model_len) - 1

    def _growth(self, request: Request) -> tuple[int, int]:
        """Tokens that it holds before this step, and in how many steps it adds one before it leaves.

        Prefill-first: steps of decodes are counted, and a prompt has its first token before the next of them.
        """
        tokens = len(request.tokens) - 1
        steps = max(1, self._final(request) - tokens)
        if self.config.batching == "prefill-first" and request.steady is None:
            return tokens + 1, steps - 1
        return tokens, steps

    def _delay(self, request: Request) -> int:
        """Most steps by which chunks may put off the request's first token while others decode.

        This is asked of the newest request alone: where others are admitted after it, its prompt ends in this step.
        """
        config = self.config
        if config.batching == "prefill-first" or not config.enable_chunked_prefill:
            return 0
        chunk = config.max_num_batched_tokens - config.max_num_seqs + 1  # what other rows leave of a step
        return -(-request.to_compute // chunk)


def forecast_peak(requests: Iterable[tuple[int, int]], block_size: int) -> int:
    """Most blocks held at once by requests that grow in step, one token each, and leave when they are done.

    Args:
        requests: tokens that each holds now, and how many it still adds.

    The sum grows until a request leaves, so one of the moments before that is the peak. With the longest-lived first,
    those that are there when request i leaves are 0 to i, and each then holds its tokens and i's remaining ones.
    """
    peak = whole = 0
    rests = [0] * block_size
    """How many requests hold so many tokens beyond their `whole` blocks."""
    ordered = sorted(requests, key=lambda request: request[1], reverse=True)
    for present, (tokens, remaining) in enumerate(ordered, start=1):
        blocks, rest = divmod(tokens, block_size)
        whole += blocks
        rests[rest] += 1
        added, extra = divmod(remaining, block_size)
        begun = present if extra else present - rests[0]
        overflowing = sum(rests[block_size - extra + 1 :])
        peak = max(peak, whole + present * added + begun + overflowing)
    return peak


def per_request_tokens(prompt: int, output: int, declared_max: int | None = None) -> int:
    """Tokens that a per-request reservation holds."""
    maximum = declared_max or 1 << (output - 1).bit_length()
    return prompt + max(maximum, output)


RESERVATIONS: dict[str, type[PagedReservation]] = {
    "paged": PagedReservation,
    "peak-forecast": PeakForecastReservation,
    "max-model-len": MaxModelLenReservation,
    "per-request": PerRequestReservation,
}
