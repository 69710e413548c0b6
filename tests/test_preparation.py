"""From options to a model on its pool: switches, limits of a step, the size of the pool, and memory that runs out."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from inferdoc import diagnosis, preparation, switches
from inferdoc.devices import Device, find_device
from inferdoc.diagnosis import _engine, _subject
from inferdoc.engine.attention.layer import LayerSpec
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.memory import Reading
from inferdoc.engine.runner import ModelRunner
from inferdoc.errors import InputError, ModelError
from inferdoc.options import Options
from inferdoc.preparation import TooLargeError, prepare, read_workload
from inferdoc.probes.context import Collector, ProbeContext
from inferdoc.progress import Progress
from inferdoc.switches import StepLimits, Switches

GIB = 2**30
HEADS = LayerSpec(kv_heads=2, key_dim=64, value_dim=64, scale=0.125)
CPU = find_device("cpu")
CARD = replace(CPU, kind="cuda")


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """A trace of short requests, the longest of 39 + 30 tokens."""
    rows = "".join(f"{i / 10},{20 + i},{10 + 5 * (i % 5)}\n" for i in range(21))
    (tmp_path / "t.csv").write_text("timestamp,prompt_tokens,completion_tokens\n" + rows)
    return Options(trace=tmp_path / "t.csv", max_model_len=128, device="cpu")


def room() -> int:
    """A budget with a GiB beside what the process holds: other tests may have run in it before."""
    own = Reading.now(CPU).own
    assert own is not None
    return own + GIB


def run(options: Options, budget: int | None = None, device: Device = CPU) -> ProbeContext | None:
    return prepare(
        options,
        "float32",
        read_workload(options),
        device,
        budget_bytes=room() if budget is None else budget,
        deadline=time.perf_counter() + 3600,
        found=Collector(),
        progress=Progress(),
        between_runs=lambda: None,
    )


@pytest.fixture(autouse=True)
def _triton_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "find_spec", lambda name: name)


def choose(options: Options, device: Device, spec: LayerSpec = HEADS, dtype: torch.dtype = torch.bfloat16) -> Switches:
    return Switches.choose(options, device, [spec], dtype)


def test_a_card_gets_triton_graphs_and_fusions() -> None:
    assert choose(Options(), CARD) == Switches("triton", enforce_eager=False, enable_fusion=True, compile=False)


def test_a_cpu_gets_the_c_function_where_it_can_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Switches("cpu", enforce_eager=True, enable_fusion=False, compile=False)
    monkeypatch.setattr(switches, "why_unavailable", lambda dtype, device: None)
    assert choose(Options(), CPU, dtype=torch.float32) == expected
    monkeypatch.setattr(switches, "why_unavailable", lambda dtype, device: "there is no C compiler")
    note = "attention in torch: there is no C compiler"
    assert choose(Options(), CPU) == replace(expected, attention_backend="torch", notes=(note,))
    assert choose(Options(attention_backend="torch"), CPU) == replace(expected, attention_backend="torch")
    with pytest.raises(InputError, match="--attention-backend cpu is not available here: there is no C compiler; use"):
        choose(Options(attention_backend="cpu"), CPU)


def test_what_is_asked_for_is_done() -> None:
    asked = Options(attention_backend="torch", enforce_eager=False, enable_fusion=False, compile=True)
    assert choose(asked, CARD) == Switches("torch", enforce_eager=False, enable_fusion=False, compile=True)
    assert choose(Options(enforce_eager=True), CARD).attention_backend == "triton"


@pytest.mark.parametrize(
    ("spec", "dtype", "reason"),
    [(replace(HEADS, key_dim=512), torch.bfloat16, "512"), (HEADS, torch.float64, "float64")],
)
def test_a_model_beyond_the_kernels_falls_back_with_a_note_or_is_refused_where_they_were_asked_for(
    spec: LayerSpec, dtype: torch.dtype, reason: str
) -> None:
    chosen = choose(Options(), CARD, spec, dtype)
    assert (chosen.attention_backend, chosen.enforce_eager) == ("torch", True)
    assert reason in chosen.notes[0]
    assert "eager" in chosen.notes[1]
    with pytest.raises(ModelError, match=reason):
        choose(Options(attention_backend="triton"), CARD, spec, dtype)


def test_without_the_package_triton_a_card_gets_torch_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "find_spec", lambda name: None)
    chosen = choose(Options(), CARD)
    assert (chosen.attention_backend, chosen.enforce_eager) == ("torch", True)
    assert chosen.notes[0].startswith("attention in torch: the package triton (Linux) is not installed")
    with pytest.raises(InputError, match=r"the package triton .* is not installed"):
        choose(Options(attention_backend="triton"), CARD)


def test_the_limits_of_a_step_come_from_the_user_or_the_device() -> None:
    assert StepLimits.of(Options(), CPU, 4000) == StepLimits(tokens=256, sequences=8, largest=256)
    assert StepLimits.of(Options(), CARD, 4000) == StepLimits(tokens=2048, sequences=64, largest=4000)
    assert StepLimits.of(Options(max_num_batched_tokens=4), CPU, 9) == StepLimits(4, 4, 4)
    assert StepLimits.of(Options(max_num_seqs=512), CPU, 9) == StepLimits(512, 512, 512)


def test_less_is_first_without_whole_prompts_then_half_down_to_the_least() -> None:
    limits = StepLimits.of(Options(), CARD, 4000)
    seen = []
    while (smaller := limits.less(Options())) is not None:
        limits = smaller
        seen.append((limits.largest, limits.sequences))
    assert seen[:3] == [(2048, 64), (1024, 32), (512, 16)]
    assert seen[-1] == (16, 2)  # a block, and two sequences
    fixed = Options(max_num_seqs=64, max_num_batched_tokens=2048)
    assert StepLimits(2048, 64, 2048).less(fixed) is None


@pytest.mark.parametrize("tokens", [1, 2, 5, 16, 40])
def test_less_never_grows(tokens: int) -> None:
    """Not to two sequences, or to a block of tokens, where the user allows less."""
    limits = StepLimits(tokens, 1, tokens)
    asked = Options(max_num_batched_tokens=tokens)
    assert limits.less(asked) is None
    smaller = limits.less(Options())
    assert smaller is None or (smaller.sequences == 1 and smaller.tokens < tokens)


def test_a_fixed_pool_is_what_was_asked_for(options: Options) -> None:
    context = run(replace(options, kv_blocks=9))
    assert context is not None
    assert (context.base.num_kv_blocks, context.runner.kv_tokens) == (9, 144)
    assert context.kv_capacity_tokens == 144
    assert context.memory.kv_pool == 144 * context.runner.kv_bytes_per_token


def test_a_fixed_pool_that_does_not_fit_is_refused_with_the_number_that_would(options: Options) -> None:
    with pytest.raises(
        InputError, match=r"--kv-blocks 10000000 takes 245,760,000,000 bytes; [\d,]+ are available"
    ) as no:
        run(replace(options, kv_blocks=10_000_000))
    most = int(str(no.value).rpartition("at most --kv-blocks ")[2].split()[0])
    assert 0 < most < 10_000_000
    assert most * 16 * 1536 < room()


def test_a_fixed_pool_that_does_not_hold_the_longest_request_is_refused_with_one_that_does(options: Options) -> None:
    with pytest.raises(InputError, match=r"--kv-blocks 4 holds 64 tokens and the longest request has 69: .*blocks 5 "):
        run(replace(options, kv_blocks=4))
    assert run(replace(options, kv_blocks=5)) is not None


def test_a_budget_without_room_for_the_longest_request_gives_nothing(options: Options) -> None:
    assert run(options, budget=20 * 2**20) is None


class Failing:
    """Stands before a function: out of memory for the first `times` calls."""

    def __init__(self, inner: Callable[..., Any], times: int) -> None:
        self.inner, self.left = inner, times

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left >= 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")
        return self.inner(*arguments, **named)


@pytest.mark.parametrize("fusion", [False, True])
@pytest.mark.parametrize("where", ["profile", "measure_sweep"])
def test_a_step_that_does_not_fit_is_halved_and_said(
    options: Options, monkeypatch: pytest.MonkeyPatch, where: str, fusion: bool
) -> None:
    monkeypatch.setattr(preparation, where, Failing(getattr(preparation, where), 2))
    context = run(replace(options, enable_fusion=fusion))
    assert context is not None
    assert (context.base.max_num_batched_tokens, context.base.max_num_seqs) == (64, 2)
    assert [note.split(" with steps of ")[1] for note in context.engine_notes] == [
        "256 tokens and 8 sequences: went on with 128 and 4",
        "128 tokens and 4 sequences: went on with 64 and 2",
    ]
    assert "2.50 GiB asked for" in context.engine_notes[0]
    assert context.engine_notes[0] in _subject(options, context.spec, context, None).notes


def test_the_pool_that_did_not_fit_is_gone_before_the_next_runner_runs_the_model(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    make, release = ModelRunner.__init__, preparation.release

    def noted_make(self: ModelRunner, model: torch.nn.Module, kv_tokens: int) -> None:
        layers = [module.inferdoc_layer for module in model.modules() if hasattr(module, "inferdoc_layer")]
        events.append("make on a pool" if any(len(layer.keys) for layer in layers) else "make")  # type: ignore[union-attr, arg-type]
        make(self, model, kv_tokens)

    def noted_release() -> None:
        events.append("release")
        release()

    def failing(*arguments: Any, **named: Any) -> Any:
        events.append("profile")
        return fails_once(*arguments, **named)

    fails_once = Failing(preparation.profile, 1)
    monkeypatch.setattr(preparation, "profile", failing)
    monkeypatch.setattr(preparation, "release", noted_release)
    monkeypatch.setattr(ModelRunner, "__init__", noted_make)
    assert run(options) is not None
    failed = events.index("profile")
    assert events[failed + 1 : failed + 3] == ["release", "make"]


def test_where_nothing_can_be_halved_the_error_says_what_would_fit(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "profile", Failing(lambda: None, 100))
    with pytest.raises(ModelError) as failed:
        run(replace(options, max_num_batched_tokens=64, max_num_seqs=4))
    text = str(failed.value)
    for part in ("2.50 GiB asked for", " free", "steps of 64 tokens", "--max-num-batched-tokens", "--dtype bfloat16"):
        assert part in text


def test_a_capture_that_fails_leaves_the_engine_eager_and_says_so(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoCapture:
        def free_bytes(self) -> int | None:
            return None

        def capture(self, _: Callable[[], None]) -> Callable[[], None]:
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(preparation, "ModelRunner", partial(ModelRunner, new_capturer=NoCapture))
    context = run(replace(options, enforce_eager=False, attention_backend="torch"))
    assert context is not None
    assert any("CUDA graphs were left out" in note and "capturing" in note for note in context.engine_notes)
    assert context.memory.graphs is None
    assert _engine(context.base) == "inferdoc engine, torch attention, eager"


def test_the_engine_is_called_by_what_it_does() -> None:
    base = EngineConfig(max_model_len=64, num_kv_blocks=4)
    assert _engine(base) == "inferdoc engine, torch attention, eager"
    card = replace(base, attention_backend="triton", enforce_eager=False, enable_fusion=True, compile=True)
    assert _engine(card) == "inferdoc engine, triton attention, CUDA graphs, fused operations, compiled"


class Big:
    """Stands for a loaded model; in a cycle, as models are."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("first_ends", ["does not fit", "fails"])
def test_the_next_type_is_tried_once_the_first_model_is_gone(
    options: Options, monkeypatch: pytest.MonkeyPatch, first_ends: str
) -> None:
    kept: list[weakref.ref[Big]] = []
    found = run(options)
    assert found is not None

    def prepared(options: Options, dtype: str, *arguments: Any, **named: Any) -> ProbeContext | None:
        assert all(model() is None for model in kept), "the first model is still in memory"
        model = Big()
        kept.append(weakref.ref(model))
        gc.freeze()
        if dtype == "bfloat16":
            return found
        if first_ends == "fails":
            raise TooLargeError("out of memory: 2.50 GiB asked for")
        return None

    monkeypatch.setattr(diagnosis, "prepare", prepared)
    session = diagnosis._Session(options, CPU, found.spec, found.trace, ["float32", "bfloat16"])
    context = diagnosis._prepare_first_that_fits(session, room(), Progress())
    assert len(kept) == 2
    assert context is not None
    told = ("not in float32: out of memory: 2.50 GiB asked for",) if first_ends == "fails" else ()
    assert context.engine_notes == (*told, *found.engine_notes)


def test_memory_that_fails_in_the_last_type_is_an_error(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = preparation.read_spec(options.model_location)
    monkeypatch.setattr(preparation, "load_model", Failing(lambda: None, 100))
    session = diagnosis._Session(options, CPU, spec, read_workload(options), ["float32", "bfloat16"])
    with pytest.raises(TooLargeError, match=r"2\.50 GiB asked for.* while loading the model as bfloat16"):
        diagnosis._prepare_first_that_fits(session, room(), Progress())
