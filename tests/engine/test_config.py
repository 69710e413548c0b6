from __future__ import annotations

import json
from dataclasses import replace

import pytest

from inferdoc.engine.config import EngineConfig
from inferdoc.errors import InputError

CONFIG = EngineConfig(max_model_len=128, num_kv_blocks=10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"num_kv_blocks": -1}, "num_kv_blocks is -1"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"block_size": 12}, "block_size is 12; it must be a power of two"),
        ({"block_size": 0}, "block_size is 0"),
        ({"max_num_batched_tokens": 7}, r"max_num_batched_tokens \(7\) is below max_num_seqs \(8\)"),
        ({"enable_prefix_caching": True, "reservation": "per-request"}, "enable_prefix_caching needs reservation"),
    ],
)
def test_a_configuration_that_cannot_run_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        replace(CONFIG, **change)


def test_an_off_on_pair_differs_in_one_named_field():
    assert CONFIG.difference(replace(CONFIG, batching="static")) == ["batching"]
    assert CONFIG.difference(CONFIG) == []


def test_a_configuration_describes_itself_in_full():
    assert EngineConfig(**json.loads(json.dumps(CONFIG.describe()))) == CONFIG
    assert CONFIG.kv_tokens == 160
