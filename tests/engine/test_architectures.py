"""Every architecture that the engine claims, as a tiny model with random weights, against its own eager attention.

The reference computes one prompt at a time, whole and without a cache. The engine packs ragged prompts, computes them
in chunks, decodes from pages that held NaN, and mixes both in a step.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.gate import check_model
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.errors import ModelError
from inferdoc.models import ModelSpec, check_supported

VOCABULARY = 97
WINDOW = 6
NEW_TOKENS = 9
PROMPTS = ([5, 17, 33, 2, 61], [8, 90, 44, 7, 3, 71, 12, 66, 29, 50, 1], [31, 9, 85])
"""Their contexts grow from 3 to 19 tokens, one by one, and so pass the window by one less, exactly and one more."""
CONFIG = EngineConfig(max_model_len=32, num_kv_blocks=24, block_size=4, max_num_seqs=3, max_num_batched_tokens=8)

DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WIDE_HEADS = DECODER | {"head_dim": 24}
"""Heads that are not hidden size / heads."""
SLIDING = WIDE_HEADS | {"sliding_window": WINDOW}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
    "n_ctx": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
GROUPS = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1}
LATENT = (
    {key: value for key, value in DECODER.items() if key != "num_key_value_heads"}
    | EXPERTS
    | GROUPS
    | {
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
    }
)
GEMMA = SLIDING | {"query_pre_attn_scalar": 16}
RUNNING: dict[str, dict[str, Any]] = {
    "apertus": DECODER,
    "arcee": DECODER,
    "biogpt": DECODER,
    "bitnet": DECODER,
    "codegen": GPT | {"rotary_dim": 8},
    "cohere": DECODER,
    "cohere2": DECODER | {"sliding_window": WINDOW} | MIXED,
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "ernie4_5": WIDE_HEADS,
    "exaone4": SLIDING | MIXED,
    "gemma": WIDE_HEADS,
    "gemma2": GEMMA | MIXED | {"attn_logit_softcapping": 2.0},
    "gemma3_text": GEMMA | MIXED,
    "gemma3n_text": GEMMA
    | {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCABULARY,
        "laurel_rank": 8,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.0] * 4,
        "intermediate_size": [96] * 4,
    },
    "gemma4_text": GEMMA
    | {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCABULARY,
        "global_head_dim": 32,
    },
    "glm": WIDE_HEADS,
    "glm4": WIDE_HEADS,
    "glm4_moe": WIDE_HEADS | EXPERTS | GROUPS,
    "glm4_moe_lite": LATENT,
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_neox": DECODER,
    "gpt_oss": SLIDING | MIXED | EXPERTS,
    "gptj": GPT | {"rotary_dim": 8},
    "granite": DECODER,
    "granitemoe": DECODER | EXPERTS,
    "granitemoeshared": DECODER | EXPERTS | {"shared_intermediate_size": 32},
    "helium": DECODER | {"head_dim": 16},
    "hunyuan_v1_dense": WIDE_HEADS,
    "jetmoe": DECODER | EXPERTS | {"kv_channels": 16, "num_key_value_heads": 2},
    "llama": WIDE_HEADS,
    "minimax_m2": WIDE_HEADS | EXPERTS,
    "ministral": SLIDING | MIXED,
    "mistral": SLIDING,
    "mixtral": SLIDING | EXPERTS,
    "nemotron": DECODER,
    "olmo": DECODER,
    "olmo2": DECODER,
    "olmo3": DECODER | {"sliding_window": WINDOW} | MIXED,
    "olmoe": DECODER | EXPERTS,
    "opt": DECODER | {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "persimmon": DECODER,
    "phi": DECODER,
    "phi3": DECODER | {"sliding_window": WINDOW},
    "phimoe": DECODER | EXPERTS,
    "qwen2": DECODER | {"sliding_window": WINDOW, "use_sliding_window": True} | MIXED,
    "qwen2_moe": DECODER | EXPERTS | {"shared_expert_intermediate_size": 48},
    "qwen3": WIDE_HEADS,
    "qwen3_moe": WIDE_HEADS | EXPERTS,
    "seed_oss": WIDE_HEADS,
    "smollm3": DECODER,
    "stablelm": DECODER,
    "starcoder2": DECODER | {"sliding_window": WINDOW},
}

LATER = {"codegen": "5.24", "gptj": "5.24", "nemotron": "5.17"}
"""First of the releases 5.10, 5.17 and 5.24 on which their attention goes through the interface."""


def build(model_type: str, config: dict[str, Any]) -> torch.nn.Module:
    """Weights N(0, 0.25) and an untied head, so that outputs vary and a wrong mask shows; no zero biases or sinks."""
    torch.manual_seed(5)
    whole = AutoConfig.for_model(model_type, **config, tie_word_embeddings=False)
    model = AutoModelForCausalLM.from_config(whole).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.25)
        elif "sinks" in name:
            torch.nn.init.normal_(parameter, 0.0, 1.0)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, 0.0, 0.25)
    return model


def own_logits(model: torch.nn.Module, prompt: list[int], output: list[int]) -> torch.Tensor:
    """Eager logits [NEW_TOKENS, vocabulary] at the places that predict `output`, all computed at once."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1]


@pytest.mark.parametrize("model_type", RUNNING)
def test_the_engine_gives_the_tokens_of_the_models_own_attention(model_type):
    if model_type not in CONFIG_MAPPING:
        pytest.skip("this transformers does not have it")
    config = RUNNING[model_type]
    model = build(model_type, config)
    layers = config.get("num_hidden_layers") or config["n_layer"]
    check_supported(ModelSpec.from_config(model.config.to_dict(), model_type))
    if Version(transformers.__version__) < Version(LATER.get(model_type, "5.10")):
        with pytest.raises(ModelError, match="0 of 2 layers"):
            check_model(model, expected_layers=layers, vocabulary=VOCABULARY, name=model_type)
        return
    result = check_model(model, expected_layers=layers, vocabulary=VOCABULARY, name=model_type)
    assert result.largest_difference < 1e-4

    runner = ModelRunner(model, CONFIG.kv_tokens)
    engine = Engine(runner, CONFIG)
    for module, _ in runner.layers:
        module.inferdoc_layer.keys.fill_(torch.nan)
        module.inferdoc_layer.values.fill_(torch.nan)
    requests = [Request(i, list(prompt), NEW_TOKENS) for i, prompt in enumerate(PROMPTS)]
    steps = engine.run(requests).steps
    assert len(runner.layers) == layers
    for module, _ in runner.layers:
        written = module.inferdoc_layer.keys.flatten(1).isfinite().all(dim=1).sum()
        assert written >= sum(map(len, PROMPTS)), "the hook ran in every layer"
    assert len(steps) > NEW_TOKENS, "prompts were computed in chunks"

    model.set_attn_implementation("eager")
    outputs = [request.output for request in requests]
    assert len(set(map(tuple, outputs))) == len(PROMPTS)
    assert len({token for output in outputs for token in output}) >= 8, "equality of constant outputs proves nothing"
    for request in requests:
        logits = own_logits(model, request.prompt, request.output)
        best = logits.max(dim=-1).values
        chosen = logits.gather(1, torch.tensor(request.output)[:, None])[:, 0]
        assert bool((best - chosen <= 1e-4 * logits.std()).all()), "the engine's token is not the model's own"


def test_at_least_thirty_of_them_exist_in_this_transformers():
    assert sum(model_type in CONFIG_MAPPING for model_type in RUNNING) >= 30


STATE = r"convolution or recurrent layers carry state"
OWN = r"does not go through transformers' attention interface"
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "bloom": (GPT | {"hidden_size": 64}, OWN, "0 of 2 layers"),
    "falcon": (DECODER | {"multi_query": True, "alibi": False}, OWN, "0 of 2 layers"),
    "mpt": ({"vocab_size": VOCABULARY, "d_model": 64, "n_layers": 2, "n_heads": 4}, OWN, "0 of 2 layers"),
    "mamba": (DECODER | {"state_size": 8, "conv_kernel": 4}, STATE, "0 of 2 layers"),
    "jamba": (
        DECODER
        | {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "expert_layer_period": 2}
        | {"mamba_d_state": 8, "use_mamba_kernels": False},
        STATE,
        "1 of 2 layers",
    ),
    "qwen3_next": (
        WIDE_HEADS
        | EXPERTS
        | {"layer_types": ["linear_attention", "full_attention"], "shared_expert_intermediate_size": 48}
        | {"linear_num_value_heads": 2, "linear_num_key_heads": 2}
        | {"linear_key_head_dim": 16, "linear_value_head_dim": 16},
        STATE,
        "1 of 2 layers",
    ),
    "lfm2": (DECODER | {"conv_L_cache": 3, "layer_types": ["conv", "full_attention"]}, STATE, "1 of 2 layers"),
    "minimax": (
        WIDE_HEADS | EXPERTS | {"layer_types": ["linear_attention", "full_attention"], "block_size": 8},
        STATE,
        "1 of 2 layers",
    ),
    "llama4_text": (
        WIDE_HEADS
        | EXPERTS
        | {"attention_chunk_size": 8, "num_experts_per_tok": 1, "intermediate_size_mlp": 96, "no_rope_layers": [1, 1]},
        "chunked attention exists only in the mask",
        "logits through the paged engine differ",
    ),
}
"""Configuration, reason of the rule, and what the gate finds on the model itself where no rule stops it before."""


@pytest.mark.parametrize("model_type", REFUSED)
def test_trap_22_a_refused_architecture_is_refused_by_name_with_its_reason(model_type):
    config, reason, _ = REFUSED[model_type]
    named = AutoConfig.for_model(model_type, **config)
    spec = ModelSpec.from_config(named.to_dict(), f"tiny {model_type}")
    with pytest.raises(ModelError, match=rf"tiny {model_type}: the engine cannot run .*: .*{reason}"):
        check_supported(spec)


@pytest.mark.parametrize("model_type", REFUSED)
def test_trap_22_setting_the_attention_raises_nothing_and_the_gate_still_refuses_the_model(model_type):
    """Were a rule missing: the silent ways to be wrong are a hook that is never called, one that is called for some
    layers, and one that is called for all while the mask never comes."""
    config, _, finding = REFUSED[model_type]
    model = build(model_type, config)
    with pytest.raises(ModelError, match=rf"tiny: .*{finding}"):
        check_model(model, expected_layers=2, vocabulary=VOCABULARY, name="tiny")


def test_an_attention_module_that_runs_twice_in_a_forward_is_refused():
    model = build("llama", RUNNING["llama"])
    model.model.layers[1].self_attn = model.model.layers[0].self_attn
    with pytest.raises(ModelError, match="1 attention modules are called 2 times"):
        check_model(model, expected_layers=2, vocabulary=VOCABULARY, name="tiny")


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3"])
def test_latent_attention_is_labelled_with_how_much_more_it_stores(model_type):
    """By hand: 4 heads x (16 + 8 key and 20 value elements) are 176, 7.33 times the latent of 16 + 8."""
    spec = ModelSpec.from_config(AutoConfig.for_model(model_type, **LATENT).to_dict(), "tiny")
    (note,) = (note for note in spec.notes if note.startswith("MLA"))
    assert "uncompressed: 7.33 x what the latent cache holds, so its capacity numbers do not transfer" in note
