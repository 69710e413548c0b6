"""A student that the user has, beside the model: memory, step times by batch size, perplexity on the same text."""

from __future__ import annotations

import math

from inferdoc.engine.gate import check_model
from inferdoc.engine.runner import ModelRunner
from inferdoc.errors import InputError
from inferdoc.evidence import Basis, Line, Question, Series
from inferdoc.models import LoadedModel, read_spec
from inferdoc.options import Options
from inferdoc.preparation import load_beside
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.quality import MIN_TOKENS
from inferdoc.probes.scoring import losses_of, spans
from inferdoc.probes.sweep import Sweep, measure_sweep
from inferdoc.probes.texts import documents_of
from inferdoc.progress import Progress
from inferdoc.statistics import RATIO_METHOD, cluster_ratio_interval, median_interval

_DOCUMENTS = 24
_HELD_TOKENS = 256


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
    loaded = load_beside(options, options.student, context.loaded.dtype, context.device, progress)
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
    config = context.config(max_model_len=longest)
    # The scores of the model first: its pool is there.
    documents = documents_of(context, _DOCUMENTS)
    parts = spans(documents, min(longest, config.kv_tokens), _HELD_TOKENS, [])
    reason = _why_no_perplexity(context, loaded, sum(span.scored for span in parts))
    own = losses_of(context.runner, config, parts) if reason is None else None
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
    a_token = runner.kv_bytes_per_token
    runner.drop_pool()
    context.runner.configure(context.base)
    _record_sizes(context, loaded, a_token)
    _record_times(context, sweep)
    ratio, interval = None, None
    if own is not None and other is not None:
        count = 1 + parts[-1].document
        added, tokens = [0.0] * count, [0.0] * count
        for span, mine, its in zip(parts, own, other, strict=True):
            added[span.document] += its - mine
            tokens[span.document] += span.scored
        ratio = math.exp(sum(added) / sum(tokens))
        log = cluster_ratio_interval(added, tokens)
        interval = log and (math.exp(log[0]), math.exp(log[1]))
    context.found.add(
        "student.perplexity_ratio",
        f"perplexity of the student {spec.name} over the model's, on {len(documents)} texts",
        ratio,
        "x",
        Basis.MEASURED,
        interval=interval,
        method=RATIO_METHOD,
        n=len(documents) if ratio is not None else None,
        direction="lower",
        reason=reason,
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


def _record_sizes(context: ProbeContext, student: LoadedModel, a_token: int) -> None:
    found, spec = context.found, student.spec
    for id, label, value, unit, basis in (
        ("parameters", f"parameters of the student {spec.name}", spec.parameters, "parameters", Basis.CONFIG),
        ("weights_bytes", f"its weights in {student.dtype}", student.weight_bytes_measured, "bytes", Basis.MEASURED),
        ("kv_bytes_per_token", "its KV bytes a token", a_token, "bytes", Basis.MEASURED),
    ):
        found.add(f"student.{id}", label, value, unit, basis, exact=True)


def _record_times(context: ProbeContext, sweep: Sweep) -> None:
    found, ours = context.found, context.sweep.decode
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
        exact=True,
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
