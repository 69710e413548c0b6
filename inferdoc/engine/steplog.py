"""One record a step: what it computed, what it held, how long it took."""

from __future__ import annotations

from dataclasses import dataclass

from inferdoc.engine.kv_manager import KVUse
from inferdoc.engine.spec_decode.proposal import DraftCounts


@dataclass(frozen=True, slots=True)
class Step:
    """Times in seconds on the clock of the run."""

    start_s: float
    end_s: float
    schedule_s: float
    """Time in the scheduler: the device idles meanwhile."""
    prefill_tokens: int
    """Prompt tokens, and outputs that are recomputed after a preemption."""
    decode_rows: int
    """Requests that decode, those with drafted tokens included."""
    padded_rows: int
    running: int
    """Requests that are running, with a row in this step or not."""
    waiting: int
    context_tokens: int
    """K/V tokens that the step's rows attend to."""
    kv: KVUse
    device_s: float | None = None
    """Time on the device, where the runner measures it."""
    bucket: int | None = None
    """Batch size of the graph that was replayed; ``None``: the step was launched operation by operation."""
    draft_s: float = 0.0
    """Time in the drafter."""
    drafts: DraftCounts | None = None
    """Drafted tokens that the step checked, and what became of them; ``None``: it checked none."""

    @property
    def drafted(self) -> int:
        """Drafted tokens that it checked."""
        return sum(self.drafts.drafted) if self.drafts else 0

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s
