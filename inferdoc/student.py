"""A student that the user has, beside the model: memory, step times by batch size, perplexity on the same text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from inferdoc.devices import bytes_text
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.gate import check_model
from inferdoc.engine.runner import ModelRunner
from inferdoc.errors import InputError
from inferdoc.evidence import Basis, Line, Question, Series
from inferdoc.models import LoadedModel, ModelSpec, read_spec
from inferdoc.options import Options
from inferdoc.preparation import load_beside
from inferdoc.probes.compression_quality import affordable
from inferdoc.probes.context import Floats, ProbeContext
from inferdoc.probes.quality import MIN_TOKENS
from inferdoc.probes.scoring import Span, losses_of, spans
from inferdoc.probes.sweep import Sweep, SweepPoint, measure_sweep
from inferdoc.probes.texts import documents_of
from inferdoc.progress import Progress
from inferdoc.statistics import MIN_CLUSTERS, RATIO_METHOD, cluster_ratio_interval, median_interval

_DOCUMENTS = 24
_HELD_TOKENS = 256
_SHARE = 0.1
"""Of the budget, for reading texts with both models."""


def check_student(options: Options) -> None:
    """Refuse, before anything is loaded, a student that is none.

    Raises:
        InputError: it cannot be read, or is not smaller than the model.
    """
    if options.student is None:
        return
    spec = read_spec(options.model_location, gguf_file=options.gguf_file, trust_remote_code=options.trust_remote_code)
    student = read_spec(options.student, trust_remote_code=options.trust_remote_code)
    if student.parameters >= spec.parameters:
        raise InputError(
            f"--student {student.name} has {student.parameters:,} parameters and {spec.name} has "
            f"{spec.parameters:,}: a student is smaller than its model"
        )


def measure_student(options: Options, context: ProbeContext, progress: Progress) -> None:
    """Record the student's sizes, step times and perplexity. The model's pool gives way to its meanwhile.

    Raises:
        InputError: the student cannot be loaded or run.
    """
    assert options.student is not None
    loaded = load_beside(options, options.student, context.loaded.dtype, context.device, progress, called="student")
    spec = loaded.spec
    longest = min(context.base.max_model_len, spec.context_length or context.base.max_model_len)
    check_model(
        loaded.model,
        expected_layers=len(spec.layers),
        vocabulary=spec.vocab_size,
        name=spec.name,
        max_model_len=longest,
        attention_backend=context.base.attention_backend,
    )
    a_token = ModelRunner(loaded.model, 1).kv_bytes_per_token
    config, refused = _beside(context, loaded, a_token, longest)
    _record_sizes(context, loaded, a_token)
    if config is None:
        _record_times(context, None, refused)
        _record_perplexity(context, spec, [], None, None, refused)
        return
    # The scores of the model first: its pool is there.
    seconds = min(_SHARE * options.budget_s, max(0.0, context.left_s))
    documents = affordable(context, documents_of(context, _DOCUMENTS), seconds)
    parts = spans(documents, min(longest, config.kv_tokens), _HELD_TOKENS, [])
    reason = _why_no_perplexity(context, loaded, sum(span.scored for span in parts))
    own = losses_of(context.runner, replace(context.base, max_model_len=longest), parts) if reason is None else None
    context.runner.drop_pool()
    runner = ModelRunner(loaded.model, config.kv_tokens)
    other = losses_of(runner, config, parts) if reason is None else None
    runner.configure(config)
    sweep = measure_sweep(
        runner,
        config,
        context=context.sweep.decode[-1].context,
        vocabulary=spec.vocab_size,
        seed=options.seed,
        drafts=(),
    )
    runner.drop_pool()
    context.runner.configure(context.base)
    _record_times(context, sweep, None)
    _record_perplexity(context, spec, parts, own, other, reason, documents[0].source if documents else None)


def _beside(
    context: ProbeContext, student: LoadedModel, a_token: int, longest: int
) -> tuple[EngineConfig | None, str | None]:
    """The student's configuration, its pool within the memory that the model's leaves; or why there is none."""
    room = context.memory.kv_pool + max(0, context.memory.left) - student.weight_bytes_measured
    blocks = min(context.base.num_kv_blocks, room // (a_token * context.base.block_size))
    if blocks * context.base.block_size < longest:
        return None, (
            f"its weights of {bytes_text(student.weight_bytes_measured)} leave no room for a sequence of {longest:,} "
            f"tokens beside the model within the memory budget"
        )
    return context.config(max_model_len=longest, num_kv_blocks=blocks), None


def _record_perplexity(
    context: ProbeContext,
    spec: ModelSpec,
    parts: Sequence[Span],
    own: Floats | None,
    other: Floats | None,
    reason: str | None,
    source: str | None = None,
) -> None:
    """The ratio over the scored tokens, its interval over the documents that have any."""
    ratio, interval = None, None
    documents = sorted({span.document for span in parts})
    if own is not None and other is not None:
        scored = {document: [0.0, 0.0] for document in documents}
        for span, mine, its in zip(parts, own, other, strict=True):
            scored[span.document][0] += its - mine
            scored[span.document][1] += span.scored
        added, tokens = zip(*scored.values(), strict=True)
        ratio = math.exp(sum(added) / sum(tokens))
        log = cluster_ratio_interval(added, tokens)
        interval = log and (math.exp(log[0]), math.exp(log[1]))
    few = f"{len(documents)} texts, an interval needs {MIN_CLUSTERS}" if ratio is not None and not interval else None
    context.found.add(
        "student.perplexity_ratio",
        f"perplexity of the student {spec.name} over the model's, on {source or 'text'}",
        ratio,
        "x",
        Basis.MEASURED,
        interval=interval,
        method=RATIO_METHOD,
        n=len(documents) if ratio is not None else None,
        direction="lower",
        reason=reason,
        note=few,
    )


def _why_no_perplexity(context: ProbeContext, student: LoadedModel, tokens: int) -> str | None:
    if not (context.loaded.trained and student.trained):
        return "the weights are random: quality counts with trained ones only"
    ours, theirs = context.loaded.tokenizer, student.tokenizer
    if ours is None or theirs is None or ours.get_vocab() != theirs.get_vocab():
        return "its vocabulary is another one, so perplexities a token do not compare"
    if tokens < MIN_TOKENS:
        return f"{tokens} tokens, needs {MIN_TOKENS}"
    return None


def _over(point: SweepPoint, base: SweepPoint) -> tuple[float, float] | None:
    """The widest interval of a ratio of medians that the medians' own intervals allow."""
    above, below = median_interval(point.seconds), median_interval(base.seconds)
    return (above[0] / below[1], above[1] / below[0]) if above and below else None


def _record_sizes(context: ProbeContext, student: LoadedModel, a_token: int) -> None:
    found, spec = context.found, student.spec
    for id, label, value, unit, basis in (
        ("parameters", f"parameters of the student {spec.name}", spec.parameters, "parameters", Basis.CONFIG),
        ("weights_bytes", f"its weights in {student.dtype}", student.weight_bytes_measured, "bytes", Basis.MEASURED),
        ("kv_bytes_per_token", "its KV bytes a token", a_token, "bytes", Basis.MEASURED),
    ):
        found.add(f"student.{id}", label, value, unit, basis, exact=True)


def _record_times(context: ProbeContext, sweep: Sweep | None, reason: str | None) -> None:
    found, ours = context.found, context.sweep.decode
    if sweep is None:
        for id, unit in (("tpot_b1", "s"), ("tpot_full_batch", "s"), ("cost", "share")):
            found.add(f"student.{id}", f"student's {id}", None, unit, Basis.MEASURED, reason=reason)
        return
    first, last = sweep.decode[0], sweep.decode[-1]
    for id, point in (("tpot_b1", first), ("tpot_full_batch", last)):
        label = f"student's TPOT of decodes alone at batch {point.batch}, {point.context:,} tokens of context"
        interval = median_interval(point.seconds)
        found.add(
            f"student.{id}",
            label,
            point.median,
            "s",
            Basis.MEASURED,
            interval=interval,
            n=len(point.seconds),
            direction="lower",
        )
    same = next((point for point in ours if point.batch == last.batch), None)
    found.add(
        "student.cost",
        f"student's time a token over the model's at batch {last.batch}",
        last.median / same.median if same else None,
        "share",
        Basis.MEASURED,
        interval=_over(last, same) if same else None,
        method="ratio of medians; ends from the two medians' own intervals, since the two were timed one after another",
        direction="lower",
        reason=None if same else f"the model was not timed at batch {last.batch}",
    )
    found.series.append(
        Series(
            id="student.tpot_by_batch",
            question=Question.HARDWARE_FIT,
            title="TPOT of the student by batch size",
            kind="line",
            x_label="batch size",
            x_unit="requests",
            y_label="TPOT",
            y_unit="s",
            x_log=True,
            lines=[
                Line(name=name, x=[float(p.batch) for p in points], y=[p.median for p in points])
                for name, points in (("model", ours), ("student", sweep.decode))
            ],
        )
    )
