"""Plans for several models at once, as `inferdoc plan` prints them and as its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from inferdoc.devices.cards import CardSpec
from inferdoc.errors import InputError, ModelError
from inferdoc.evidence import Basis, Contract, Schema
from inferdoc.models.config_file import COMPANION, read_spec
from inferdoc.models.planning import ASSUMPTIONS, STEP_SEQUENCES, STEP_TOKENS, Plan, estimate

SCHEMA = Schema(name="inferdoc.plan", version="1.1")


class PlanSettings(Contract):
    """What was asked. ``None``: left to the checkpoint (types), or to the fewest cards (gpus)."""

    context_tokens: int
    gpus: int | None = None
    batch: int = 1
    weight_dtype: str | None = None
    kv_cache_dtype: str | None = None
    gpu_memory_utilization: float = 0.9
    step_tokens: int = STEP_TOKENS
    step_sequences: int = STEP_SEQUENCES


class PlanEntry(Contract):
    """One model that was asked for: its plan, or why there is none."""

    source: str
    """As the user gave it."""
    plan: Plan | None = None
    reason: str | None = None


class PlanBases(Contract):
    """Where the numbers come from, by kind."""

    parameters: Basis = Basis.CONFIG
    weight_bytes: Basis = Basis.CONFIG
    kv: Basis = Basis.CONFIG
    activations: Basis = Basis.MODELLED
    weights_of_a_rank: Basis = Basis.MODELLED
    card: Basis = Basis.SPEC


class PlanReport(Contract):
    schema_: Annotated[Schema, Field(alias="schema")] = SCHEMA
    card: CardSpec
    settings: PlanSettings
    basis: PlanBases
    assumptions: tuple[str, ...] = ASSUMPTIONS
    models: list[PlanEntry]
    skipped: tuple[str, ...] = ()
    """Files that are no models, with what they are."""

    model_config = ConfigDict(populate_by_name=True)


def plan_models(models: Sequence[str], card: CardSpec, settings: PlanSettings) -> PlanReport:
    """Sizes each of `models`; of several, one that cannot be sized is an entry with the reason.

    A ``hf_quant_config.json`` among several is skipped: it is read with the config.json that it stands beside.

    Raises:
        InputError: the only model cannot be sized, or nothing but companions was given.
    """
    wanted = [model for model in models if not _is_companion(model)]
    skipped = tuple(f"{model}: quantization of the model beside it" for model in models if _is_companion(model))
    if not wanted:
        raise ModelError(
            f"{models[0]}: the quantization of a model, not a model: give the config.json that stands beside it"
        )
    entries = []
    for model in wanted:
        try:
            entries.append(PlanEntry(source=model, plan=_plan(model, card, settings)))
        except InputError as error:
            if len(wanted) == 1:
                raise
            entries.append(PlanEntry(source=model, reason=str(error)))
    return PlanReport(card=card, settings=settings, basis=PlanBases(card=card.basis), models=entries, skipped=skipped)


def _plan(model: str, card: CardSpec, settings: PlanSettings) -> Plan:
    return estimate(
        read_spec(model),
        card,
        settings.context_tokens,
        gpus=settings.gpus,
        batch=settings.batch,
        dtype=settings.weight_dtype,
        kv_dtype=settings.kv_cache_dtype,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        step_tokens=settings.step_tokens,
        step_sequences=settings.step_sequences,
    )


def _is_companion(model: str) -> bool:
    name = Path(model).name
    return name == COMPANION or name.endswith(f".{COMPANION}")
