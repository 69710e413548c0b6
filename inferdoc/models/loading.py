"""Loads a model for running: safetensors directories, hub ids, GGUF files, and random weights from a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inferdoc.devices import is_out_of_memory
from inferdoc.errors import ModelError
from inferdoc.models.checkpoint import weight_files
from inferdoc.models.config_file import Source, find_source, hub_failure, is_offline, spec_of
from inferdoc.models.quiet import silence
from inferdoc.models.spec import ModelSpec
from inferdoc.models.support import check_supported

if TYPE_CHECKING:
    import torch

LoadFormat = Literal["auto", "dummy"]
_DTYPES = ("float32", "float64", "bfloat16", "float16")
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_GAIN = 1.4
"""Random matrices are drawn with this gain over 1/sqrt(fan in): enough for greedy outputs that vary (30 tokens
at 37 positions), and little enough for 32 layers in bfloat16 to stay within 0.2 of the logits' spread of float32. With
2.0 they differ by 0.7, and nothing could be checked."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to run.

    model: in evaluation mode, on its device, without gradients. tokenizer: None where none came with it.
    load_format: ``auto`` or ``dummy``. trained: False for random weights, whose outputs mean nothing.
    resolved: directory or hub id that it was read from. weight_bytes_measured: bytes of its tensors, shared ones once.
    eos_token_ids: tokens that end an output; empty where nothing says.
    """

    model: torch.nn.Module
    tokenizer: Any | None
    spec: ModelSpec
    load_format: LoadFormat
    trained: bool
    resolved: str
    weight_bytes_measured: int
    eos_token_ids: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """Type of the weights as loaded."""
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")


def load_model(
    model: str | Path,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    load_format: LoadFormat = "auto",
    gguf_file: str | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
) -> LoadedModel:
    """Loads a model that the engine can run.

    Args:
        model: directory, hub id, GGUF file, config.json (with ``load_format="dummy"``), or ``embedded``.
        dtype: ``float32``, ``float64``, ``bfloat16``, ``float16``, or ``auto``: the checkpoint's own on CUDA, float32
            on a CPU. It is given to transformers, never applied afterwards: casting a loaded model would round the
            frequencies of its rotary positions.
        load_format: ``dummy`` draws seeded random weights and reads only the configuration.
        gguf_file: name of the GGUF file inside the directory `model`.
        trust_remote_code: allow code that comes with the model to run.
        attn_implementation: ``None`` leaves it to transformers, since some families (soft caps, sinks) have no sdpa.

    Raises:
        ModelError: not found, no weights, tensors missing, unsupported by the engine, or transformers refuses it.
        Exception: memory could not be had, as `is_out_of_memory` tells.
    """
    if dtype != "auto" and dtype not in _DTYPES:
        raise ModelError(f"--dtype {dtype}: choose one of auto, {', '.join(_DTYPES)}")
    source = find_source(model, gguf_file=gguf_file)
    spec = spec_of(source, trust_remote_code=trust_remote_code)
    check_supported(spec)
    chosen, note = _choose_dtype(spec, dtype, device)
    if load_format == "dummy":
        loaded = _random_model(source, chosen, device, seed, trust_remote_code, attn_implementation)
    else:
        loaded = _trained_model(source, chosen, device, trust_remote_code, attn_implementation)
    loaded.eval().requires_grad_(False)
    tokenizer = _tokenizer(source, trust_remote_code)
    notes = [spec_note for spec_note in (*spec.notes, note) if spec_note]
    if spec.quantization is not None and load_format == "auto" and source.gguf_file is None:
        loaded.quantized_by = spec.quantization  # type: ignore[assignment]
        if not hasattr(loaded.config, "quantization_config"):
            notes.append(
                f"the checkpoint's {spec.quantization} weights were dequantized, since transformers cannot run them "
                f"here: sizes and times are those of {chosen} weights"
            )
    if tokenizer is None:
        notes.append("no tokenizer came with the model: traces of text cannot be run")
    return LoadedModel(
        model=loaded,
        tokenizer=tokenizer,
        spec=replace(spec, notes=tuple(notes)),
        load_format=load_format,
        trained=load_format == "auto",
        resolved=source.location,
        weight_bytes_measured=measure_weights(loaded),
        eos_token_ids=_eos_token_ids(loaded, tokenizer),
    )


def measure_weights(model: torch.nn.Module) -> int:
    """Bytes of all parameters and saved buffers; tensors that share memory (a tied head) count once."""
    seen: dict[tuple[int, int, int], int] = {}
    for whole in model.state_dict().values():
        for tensor in _parts(whole):
            key = (tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()), tensor.numel())
            seen[key] = tensor.numel() * tensor.element_size()
    return sum(seen.values())


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that hold it: quantized weights are several that act as one."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from _parts(getattr(tensor, name))


def _choose_dtype(spec: ModelSpec, dtype: str, device: str) -> tuple[str, str | None]:
    if dtype != "auto":
        return dtype, None
    if not device.startswith("cpu"):
        return (spec.dtype if spec.dtype in _DTYPES else "bfloat16"), None
    if spec.dtype == "float32":
        return "float32", None
    return "float32", f"loaded as float32: {spec.dtype} is emulated or slow on most CPUs; --dtype {spec.dtype} keeps it"


def _trained_model(
    source: Source, dtype: str, device: str, trust_remote_code: bool, attn_implementation: str | None
) -> torch.nn.Module:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    offline = source.directory is None and is_offline()
    if source.directory is not None and source.gguf_file is None:
        _check_weights(source.directory)
    extra: dict[str, Any] = {} if device.startswith("cpu") else {"device_map": {"": device}}
    if source.gguf_file is not None:
        extra["gguf_file"] = source.gguf_file
        # read once already: transformers takes seconds for each pass over the metadata
        extra["config"] = CONFIG_MAPPING[str(source.config["model_type"])].from_dict(dict(source.config))
    try:
        with silence():
            model, report = AutoModelForCausalLM.from_pretrained(
                source.location,
                dtype=getattr(torch, dtype),
                trust_remote_code=trust_remote_code,
                attn_implementation=attn_implementation,
                local_files_only=offline or source.directory is not None,
                output_loading_info=True,
                **extra,
            )
    except Exception as error:
        if is_out_of_memory(error):
            raise
        if source.directory is None and isinstance(error, OSError):
            raise ModelError(hub_failure(source.location, error, offline=offline)) from None
        raise ModelError(_load_failure(source, error)) from None
    missing = sorted(report.get("missing_keys") or ())
    if missing:
        # transformers fills them with random numbers and goes on
        raise ModelError(
            f"{source.name}: the weights lack {len(missing)} tensors of {type(model).__name__} (first: {missing[0]}); "
            f"the checkpoint is incomplete or belongs to another architecture"
        )
    assert isinstance(model, torch.nn.Module)
    return model


def _random_model(
    source: Source, dtype: str, device: str, seed: int, trust_remote_code: bool, attn_implementation: str | None
) -> torch.nn.Module:
    import torch

    with torch.random.fork_rng(devices=[]):
        model = _from_config(source, dtype, device, trust_remote_code, attn_implementation)
    _draw_weights(model, torch.Generator(device=device).manual_seed(seed))
    return model


def model_without_weights(
    model: str | Path, *, dtype: str, gguf_file: str | None = None, trust_remote_code: bool = False
) -> torch.nn.Module:
    """The model that `load_model` would give, on the meta device: shapes without memory, in a fraction of a second.

    Raises:
        ModelError: not found, or transformers cannot make it from its configuration.
    """
    source = find_source(model, gguf_file=gguf_file)
    return _from_config(source, dtype, "meta", trust_remote_code, None).eval()


def _from_config(
    source: Source, dtype: str, device: str, trust_remote_code: bool, attn_implementation: str | None
) -> torch.nn.Module:
    import torch
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

    plain = {key: value for key, value in source.config.items() if key != "quantization_config"}
    try:
        with silence():
            if trust_remote_code and plain.get("auto_map"):
                config = AutoConfig.from_pretrained(source.location, trust_remote_code=True)
            else:
                plain.pop("auto_map", None)
                config = CONFIG_MAPPING[str(plain["model_type"])].from_dict(plain)
            with torch.device(device):
                model = AutoModelForCausalLM.from_config(
                    config,
                    dtype=getattr(torch, dtype),
                    trust_remote_code=trust_remote_code,
                    attn_implementation=attn_implementation,
                )
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ModelError(_load_failure(source, error)) from None
    assert isinstance(model, torch.nn.Module)
    return model


def _draw_weights(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Redraws every matrix; norms and biases keep what the class sets. Tied tensors are drawn once."""
    import torch

    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.ndim >= 2:
                parameter.normal_(0.0, _GAIN / parameter.shape[-1] ** 0.5, generator=generator)


def _check_weights(directory: Path) -> None:
    if weight_files(directory) or any((directory / name).is_file() for name in _OTHER_WEIGHTS):
        return
    raise ModelError(
        f"{directory}: no weights here (model.safetensors, or an index of several files); "
        f"--load-format dummy runs the configuration with random weights"
    )


def _load_failure(source: Source, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    hint = "; its own code is needed: --trust-remote-code" if "trust_remote_code" in str(error) else ""
    return f"{source.name}: transformers cannot load it: {reason}{hint}. Sizing and trace analysis still work"


def _tokenizer(source: Source, trust_remote_code: bool) -> Any | None:
    from transformers import AutoTokenizer

    extra = {"gguf_file": source.gguf_file} if source.gguf_file is not None else {}
    if source.directory is not None and source.gguf_file is None and not _has_tokenizer(source.directory):
        return None
    try:
        with silence():
            return AutoTokenizer.from_pretrained(
                source.location,
                trust_remote_code=trust_remote_code,
                local_files_only=source.directory is not None or is_offline(),
                **extra,
            )
    except Exception:
        return None  # said in the notes; only traces of text need one


def sequence_start(tokenizer: Any) -> list[int]:
    """The beginning-of-sequence token where the tokenizer puts one before a text, else nothing."""
    token = tokenizer.bos_token_id
    return [token] if token is not None and tokenizer("a")["input_ids"][:1] == [token] else []


def _has_tokenizer(directory: Path) -> bool:
    # Without any of these transformers builds an empty tokenizer from the model type, with no error.
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")
    return any((directory / name).is_file() for name in names)


def _eos_token_ids(model: torch.nn.Module, tokenizer: Any | None) -> tuple[int, ...]:
    for owner in (getattr(model, "generation_config", None), getattr(model, "config", None), tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        if isinstance(ids, int):
            return (ids,)
        if isinstance(ids, list | tuple) and ids:
            return tuple(int(token) for token in ids)
    return ()
