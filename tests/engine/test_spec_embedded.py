"""The shipped pair on shipped prompts: speculation changes no token, and some drafts stand."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.spec_decode.config import SpeculativeConfig
from inferdoc.engine.spec_decode.drafter import make_drafter, refuse_pair

CONFIG = EngineConfig(max_model_len=1024, num_kv_blocks=256, max_num_seqs=4, enable_prefix_caching=True)
OUTPUT = 24


@pytest.fixture(scope="module")
def data(repository: Path) -> Path:
    return repository / "inferdoc" / "data"


def test_drafts_of_the_pair_and_of_prompt_lookup_change_no_token(data):
    tokenizer = AutoTokenizer.from_pretrained(data / "target")
    with gzip.open(data / "trace.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines][:40:10]
    prompts = [
        tokenizer(tokenizer.apply_chat_template(row["messages"][:-1], tokenize=False, add_generation_prompt=True))
        for row in rows
    ]
    target, draft = (
        ModelRunner(AutoModelForCausalLM.from_pretrained(data / name, dtype=torch.float64).eval(), CONFIG.kv_tokens)
        for name in ("target", "draft")
    )
    vocabularies = [AutoTokenizer.from_pretrained(data / name).get_vocab() for name in ("target", "draft")]
    refuse_pair(*vocabularies, *(sum(p.numel() for p in each.model.parameters()) for each in (target, draft)))
    outputs = {}
    for method in (None, "ngram", "draft"):
        speculative = method and SpeculativeConfig(method=method, num_speculative_tokens=4)
        config = replace(CONFIG, speculative_config=speculative)
        drafter = make_drafter(config, draft_runner=draft, vocabulary=len(tokenizer))
        requests = [Request(number, prompt["input_ids"], OUTPUT) for number, prompt in enumerate(prompts)]
        steps = Engine(target, config, drafter=drafter).run(requests).steps
        outputs[method] = [request.output for request in requests]
        accepted = sum(request.accepted for request in requests)
        assert (accepted > 0) == (method is not None)
        assert len(steps) < OUTPUT + 10
    assert outputs["ngram"] == outputs["draft"] == outputs[None]
    assert all(len(set(output)) > 5 for output in outputs[None]), "equality of constant outputs proves nothing"
