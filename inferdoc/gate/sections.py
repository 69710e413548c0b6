"""The keys of each section of a policy, and what each may hold."""

from __future__ import annotations

import re
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

from inferdoc.engine.config import EngineConfig
from inferdoc.errors import InputError
from inferdoc.gate import policy as models
from inferdoc.gate.amounts import parse_amount
from inferdoc.gate.values import (
    Reader,
    amount,
    between,
    duration,
    flag,
    near,
    number,
    objectives,
    one_of,
    power_of_two,
    scale,
    size,
    text,
    whole,
    within,
)

FEWEST_PAIRS = 5
"""A signed-rank test of fewer can't reach p = 0.05."""
MOST_PAIRS = 50
PLACEHOLDERS = ("workload", "env")


def _choices(owner: type, name: str) -> Reader:
    """One of what the field's `Literal` names."""
    if issubclass(owner, BaseModel):
        return one_of(*get_args(owner.model_fields[name].annotation))
    return one_of(*get_args(get_type_hints(owner)[name]))


def _path(value: Any) -> str:
    path = text(value)
    for name in re.findall(r"\{([^{}]*)\}", path):
        if name not in PLACEHOLDERS:
            raise ValueError(f"there is no placeholder {{{name}}}; {near(name, PLACEHOLDERS)}")
    if re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", path)):
        raise ValueError(f"{path!r} has a brace that is not closed or not opened; write {{workload}} or {{env}}")
    return path


def _warmup(value: Any) -> str | int:
    if isinstance(value, str):
        return str(one_of("until_steady")(value))
    return int(whole(0)(value))


def _confirm(value: Any) -> int:
    pairs = int(whole(0, MOST_PAIRS)(value))
    if 0 < pairs < FEWEST_PAIRS:
        raise ValueError(f"is {pairs}; so few pairs can't reach p = 0.05: give {FEWEST_PAIRS} or more, or 0 for none")
    return pairs


def _price(value: Any) -> float:
    if number(value) <= 0:
        raise ValueError(f"is {value}; it must be more than 0")
    return number(value)


def _rate(value: Any) -> float:
    """Requests per second."""
    try:
        rate = parse_amount(amount(value), "requests/s", what="")
    except InputError as error:
        raise ValueError(str(error).removeprefix(": ")) from None
    if rate == 0:
        raise ValueError("is 0; it must be more than 0 requests/s")
    return rate


def _device(value: Any) -> str:
    device = text(value)
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", device):
        raise ValueError(f"there is no device {device!r}; write auto, cpu, cuda or cuda:0")
    return device


def _list_of_fields(value: Any) -> list[Any]:
    """The items are checked one by one, each at its own line."""
    if not isinstance(value, list):
        raise ValueError('must be a list, such as ["gpu.model", "model.dtype"]')
    return value


def _questions(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list of numbers, such as [2, 3]")
    questions = tuple(whole(1, 6)(item) for item in value)
    if len(set(questions)) < len(questions):
        raise ValueError(f"names a question twice: {list(questions)}")
    return questions


SECTIONS: dict[str, dict[str, Reader]] = {
    "baseline": {
        "mode": _choices(models.BaselinePolicy, "mode"),
        "path": _path,
        "missing": _choices(models.BaselinePolicy, "missing"),
        "history_max": whole(1),
    },
    "design": {
        "pairs": whole(FEWEST_PAIRS, MOST_PAIRS),
        "max_pairs": whole(FEWEST_PAIRS, MOST_PAIRS),
        "warmup": _warmup,
        "restart": _choices(models.DesignPolicy, "restart"),
        "confirm": _confirm,
        "seed": whole(0),
    },
    "comparable": {
        "must_match": _list_of_fields,
        "may_vary": _list_of_fields,
        "warn": _list_of_fields,
        "unknown": _choices(models.ComparablePolicy, "unknown"),
    },
    "statistics": {
        "alpha": between(0, 0.5),
        "correction": _choices(models.StatisticsPolicy, "correction"),
        "interval": between(0.5, 1),
    },
    "diagnosis": {
        "on_diagnosis_change": _choices(models.DiagnosisPolicy, "on_diagnosis_change"),
        "budget": duration,
        "questions": _questions,
    },
    "workload": {
        "trace": text,
        "trace_format": text,
        "skip_bad_rows": flag,
        "requests": whole(1),
        "budget": duration,
        "load": within(0.05, 0.95),
        "rate": _rate,
        "length_scale": scale,
        "slo": objectives,
        "device": _device,
        "memory": size,
    },
    "exit": {"inconclusive": _choices(models.ExitPolicy, "inconclusive")},
    "cost": {"per_hour": _price},
}
FIELDS = {"budget": "budget_s", "memory": "memory_bytes"}
"""Fields of the models that a file names otherwise: the file's values carry their unit."""

ARM: dict[str, Reader] = {
    "model": text,
    "command": text,
    "batching": _choices(EngineConfig, "batching"),
    "enable_chunked_prefill": flag,
    "enable_prefix_caching": flag,
    "reservation": _choices(EngineConfig, "reservation"),
    "dtype": one_of("auto", "float32", "float64", "bfloat16", "float16"),
    "load_format": one_of("auto", "dummy"),
    "gguf_file": text,
    "trust_remote_code": flag,
    "max_model_len": whole(64),
    "max_num_seqs": whole(2),
    "max_num_batched_tokens": whole(1),
    "block_size": power_of_two,
    "kv_blocks": whole(1),
    "attention_backend": one_of("auto", "torch", "cpu", "triton"),
    "enforce_eager": flag,
    "enable_fusion": flag,
    "compile": flag,
}

METRIC: dict[str, Reader] = {
    "id": text,
    "role": _choices(models.MetricPolicy, "role"),
    "kind": _choices(models.MetricPolicy, "kind"),
    "max_regression": amount,
    "floor": amount,
    "max_value": amount,
    "min_value": amount,
    "min_requests": whole(1),
}
