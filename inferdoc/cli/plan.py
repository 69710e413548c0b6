"""``inferdoc plan``: what a model needs on a card, from its configuration alone."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class WeightDtype(StrEnum):
    AUTO = "auto"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    INT8 = "int8"
    FP8 = "fp8"
    INT4 = "int4"


class KvCacheDtype(StrEnum):
    AUTO = "auto"
    BF16 = "bf16"
    FP8 = "fp8"


def plan(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="A directory, a config.json, a .gguf file, a hub id; several make a list."
        ),
    ],
    gpu: Annotated[
        str | None, typer.Option(help="Card, for example h200_sxm. Default: the one that is here.", show_default=False)
    ] = None,
    context: Annotated[int, typer.Option(min=1, help="Tokens of a sequence, prompt and output together.")] = 8192,
    gpus: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="Cards at hand. Default: the fewest that hold the model.", show_default=False
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences of that length that must be held at once.")] = 1,
    dtype: Annotated[
        WeightDtype, typer.Option(help="Weights: as the checkpoint stores them, or sized as this type.")
    ] = WeightDtype.AUTO,
    kv_cache_dtype: Annotated[
        KvCacheDtype, typer.Option(help="auto: what the checkpoint asks for, else 16 bits.")
    ] = KvCacheDtype.AUTO,
    gpu_memory_utilization: Annotated[
        float, typer.Option(min=0.05, max=1.0, help="Share of a card's memory for weights, overhead and KV together.")
    ] = 0.9,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of the largest step, which sets the activations.")
    ] = 8192,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Sequences of the largest step.")] = 256,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (schema inferdoc.plan) instead of a table.")
    ] = False,
) -> None:
    """Size models for a card without loading them: weights, KV, tokens that fit, batch, cards and splits."""
    from inferdoc.devices.cards import find_card_spec, present_card_spec
    from inferdoc.devices.device import find_device
    from inferdoc.models.listing import PlanSettings, plan_models

    card = find_card_spec(gpu) if gpu is not None else present_card_spec(find_device("auto"))
    settings = PlanSettings(
        context_tokens=context,
        gpus=gpus,
        batch=batch,
        weight_dtype=None if dtype is WeightDtype.AUTO else dtype.value,
        kv_cache_dtype=None if kv_cache_dtype is KvCacheDtype.AUTO else kv_cache_dtype.value,
        gpu_memory_utilization=gpu_memory_utilization,
        step_tokens=max_num_batched_tokens,
        step_sequences=max_num_seqs,
    )
    report = plan_models(models, card, settings)
    if as_json:
        from inferdoc.reports.writing import to_json

        typer.echo(to_json(report, sort_keys=True), nl=False)
        return
    from inferdoc.reports.plan_table import print_plans

    print_plans(report)
