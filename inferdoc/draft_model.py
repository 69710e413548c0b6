"""The draft model beside the target: whether it can draft for it, what memory it takes, how long its steps take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from inferdoc.devices import bytes_text
from inferdoc.engine.config import AttentionBackend, EngineConfig
from inferdoc.engine.gate import check_model
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.engine.spec_decode.drafter import refuse_larger, refuse_pair
from inferdoc.errors import InputError
from inferdoc.models import LoadedModel, read_spec
from inferdoc.options import Options
from inferdoc.probes.context import LoadedDraft
from inferdoc.probes.sweep import Sweep, SweepPoint, measure_sweep, rounds


def check_draft_model(options: Options) -> None:
    """Refuse, before anything is loaded, a draft model that cannot be read or is larger than its target.

    Raises:
        InputError: so.
    """
    if options.draft_location is None:
        return
    spec = read_spec(options.model_location, gguf_file=options.gguf_file, trust_remote_code=options.trust_remote_code)
    draft = read_spec(options.draft_location, trust_remote_code=options.trust_remote_code)
    refuse_larger(spec.parameters, draft.parameters)


def refuse_drafting(target: LoadedModel, draft: LoadedModel) -> None:
    """Refuse a draft model that cannot draft for the target, or cannot pay.

    Raises:
        InputError: another vocabulary, or more parameters than the target.
    """
    vocabularies = [_vocabulary(model) for model in (target, draft)]
    refuse_pair(vocabularies[0], vocabularies[1], target.spec.parameters, draft.spec.parameters)


def _vocabulary(model: LoadedModel) -> dict[str, int]:
    """Ids by token; by number alone where there is no tokenizer."""
    if model.tokenizer is not None:
        return dict(model.tokenizer.get_vocab())
    return {str(number): number for number in range(model.spec.vocab_size)}


def check_draft(draft: LoadedModel, max_model_len: int, attention_backend: AttentionBackend) -> None:
    """The engine's load-time gate, for the draft model.

    Raises:
        InputError: it reads fewer tokens than the target's longest sequence.
        ModelError: the engine would run another model than this one.
    """
    spec = draft.spec
    if spec.context_length is not None and spec.context_length < max_model_len:
        raise InputError(
            f"the draft model's context of {spec.context_length:,} tokens is below the longest sequence: "
            f"--max-model-len {spec.context_length}, another --draft-model, or --draft-model none"
        )
    check_model(
        draft.model,
        expected_layers=len(spec.layers),
        vocabulary=spec.vocab_size,
        name=spec.name,
        max_model_len=max_model_len,
        attention_backend=attention_backend,
    )


@dataclass(frozen=True)
class DraftRoom:
    """Memory for the draft model beside the target's pool: its weights, and its own K/V for each token of the pool."""

    name: str
    weights: int
    per_token: int
    tokens: int
    """That both pools can hold."""

    @classmethod
    def of(cls, draft: LoadedModel, available: int, target_per_token: int) -> DraftRoom:
        """
        Args:
            available: bytes for both pools, the draft's weights taken off.
        """
        per_token = ModelRunner(draft.model, 1).kv_bytes_per_token
        return cls(draft.spec.name, draft.weight_bytes_measured, per_token, available // (target_per_token + per_token))

    def bytes(self, base: EngineConfig) -> int:
        """Weights and K/V beside the pool of `base`."""
        return self.weights + self.per_token * draft_pool(base)

    def note(self, least: int) -> str:
        takes = f"{bytes_text(self.weights)} of weights and {self.per_token:,} bytes of K/V for each token of the pool"
        if self.tokens < least:
            return (
                f"the draft model {self.name} was left out: beside its {takes} memory holds {self.tokens:,} tokens, "
                f"and {least:,} are needed"
            )
        return f"the draft model {self.name} takes {takes} from the memory budget"


def draft_pool(base: EngineConfig) -> int:
    """Tokens of the draft's pool: as many as the target's, and at least one sequence."""
    return max(base.kv_tokens, -(-base.max_model_len // base.block_size) * base.block_size)


def time_draft(draft: LoadedModel, target: ModelRunner, base: EngineConfig, sweep: Sweep, *, seed: int) -> LoadedDraft:
    """Give the draft its pool, and time its steps: prompts and decodes alone, and decodes beside the target's.

    Args:
        sweep: the target's, whose batch sizes and contexts are taken.
    """
    runner = ModelRunner(draft.model, draft_pool(base))
    vocabulary = draft.spec.vocab_size
    own = measure_sweep(runner, base, context=sweep.decode[-1].context, vocabulary=vocabulary, seed=seed, drafts=())
    target.configure(base)
    ratios = {}
    for point in sweep.decode:
        batch = _decodes(point, base.block_size)
        theirs, mine = rounds([partial(target.execute, batch), partial(runner.execute, batch)])
        ratios[point.batch] = [a / b for a, b in zip(mine, theirs, strict=True)]
    return LoadedDraft(draft, runner, own.times, ratios)


def _decodes(point: SweepPoint, block_size: int) -> Batch:
    """A decode step of that shape, on blocks from the pool's start on."""
    width = -(-(point.context + 1) // block_size)
    rows = []
    for index in range(point.batch):
        request = Request(index, [0] * (point.context + 1), 1)
        request.num_computed = point.context
        request.block_ids = list(range(index * width, (index + 1) * width))
        rows.append(Row(request, 1, samples=True))
    return Batch(rows, block_size)
