"""All that is computed from a trace, as `inferdoc trace inspect` prints and stores it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import ConfigDict, Field

from inferdoc.evidence import Contract, Schema, Workload
from inferdoc.traces.absences import Absence, absences
from inferdoc.traces.breakers import BreakerAnalysis, analyse_breakers
from inferdoc.traces.component_order import ComponentOrder, component_order
from inferdoc.traces.course import Course, course
from inferdoc.traces.formats import BY_NAME
from inferdoc.traces.load import LoadAnalysis, analyse_load
from inferdoc.traces.prefix_analysis import PrefixAnalysis, analyse_prefixes
from inferdoc.traces.service import Service
from inferdoc.traces.signatures import SIGNATURES
from inferdoc.traces.tokens import Encode
from inferdoc.traces.trace import Trace

SCHEMA = Schema(name="inferdoc.trace", version="1.0")
REPLICAS = (1, 2, 4, 8)


class Understood(Contract):
    """How the file was read."""

    model_config = ConfigDict(frozen=True)

    format_title: str
    recognised_by: str | None
    """By what the content shows the format; ``None`` where the user named it."""
    segments: int
    """Stretches of one clock."""
    independent_clocks: bool
    rows_left_out: int
    sessions: int | None
    models: int | None
    cached_share: float | None
    """Cached tokens as recorded over the prompt tokens of the same requests."""


class TraceAnalysis(Contract):
    model_config = ConfigDict(frozen=True)

    schema_: Annotated[Schema, Field(alias="schema")] = SCHEMA
    workload: Workload
    understood: Understood
    absent: list[Absence]
    load: LoadAnalysis
    course: Course
    prefixes: PrefixAnalysis
    breakers: BreakerAnalysis
    component_order: ComponentOrder


def analyse(
    trace: Trace,
    *,
    block_sizes: Sequence[int] | None = None,
    capacities_tokens: Sequence[int] | None = None,
    replicas: Sequence[int] = REPLICAS,
    service: Service | None = None,
    max_model_len: int | None = None,
    encode: Encode | None = None,
    show_text: bool = False,
    format_named: bool = False,
    stage: Callable[[str], None] = lambda _: None,
) -> TraceAnalysis:
    """Everything that `trace` tells.

    Args:
        block_sizes: tokens a block; see `analyse_prefixes`. The first is also that of the memory demand.
        capacities_tokens: sizes of the KV cache to give hit rates for.
        encode: the model's tokenizer, where texts were counted with one.
        show_text: put the text around what breaks prefixes into the result.
        format_named: the user named the format.
        stage: told what begins.

    Raises:
        ValueError: a size or number below 1.
        TraceError: block hashes of unknown size.
    """
    stage("lengths, arrivals and memory")
    sizes = block_sizes or ((trace.block_size,) if trace.block_size else (16,))
    load = analyse_load(trace, service=service, block_sizes=sizes[:1], max_model_len=max_model_len)
    stage("prefixes")
    prefixes = analyse_prefixes(trace, block_sizes=block_sizes, capacities_tokens=capacities_tokens, replicas=replicas)
    stage("what breaks prefixes")
    breakers = analyse_breakers(trace, block_size=(block_sizes or (16,))[0], encode=encode, show_text=show_text)
    return TraceAnalysis(
        workload=trace.workload(),
        understood=_understood(trace, format_named),
        absent=absences(trace),
        load=load,
        course=course(trace),
        prefixes=prefixes,
        breakers=breakers,
        component_order=component_order(trace),
    )


def _understood(trace: Trace, format_named: bool) -> Understood:
    rows, entry = trace.rows, BY_NAME.get(trace.format)
    cached = rows.select("cached_tokens", "input_tokens").drop_nulls()
    prompts = int(cached["input_tokens"].sum())
    return Understood(
        format_title=entry.title if entry is not None else trace.format,
        recognised_by=None if format_named else SIGNATURES.get(trace.format),
        segments=max(1, rows["segment"].n_unique()),
        independent_clocks=trace.independent_clocks,
        rows_left_out=sum(left.rows for left in trace.left_out),
        sessions=rows["session"].drop_nulls().n_unique() if trace.has("session") else None,
        models=rows["model"].drop_nulls().n_unique() if trace.has("model") else None,
        cached_share=int(cached["cached_tokens"].sum()) / prompts if prompts else None,
    )
