"""Names of models that tell only the model, and what is shown of the others."""

from __future__ import annotations

import polars as pl
import pytest

from inferdoc.traces.model_names import HIDDEN, is_public, model_notes, short

PUBLIC = (
    "Qwen/Qwen3-0.6B", "meta-llama/Llama-3.1-8B-Instruct", "gpt-4o-2024-08-06", "claude-3-5-sonnet-20241022", "GPT-4",
    "anthropic.claude-3-haiku-20240307-v1:0", "us.anthropic.claude-sonnet-4-20250514-v1:0", "llama3:70b",
    "openai/gpt-4", "deepseek-ai/DeepSeek-R1-0528", "acme-internal-7b",
)  # fmt: skip
PRIVATE = {
    "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc": "abc",
    "arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-v2:1": "anthropic.claude-v2:1",
    "arn:aws:sagemaker:us-east-1:123456789012:endpoint/chat": "chat",
    "/home/alice/models/m0": "m0",
    "/home/alice/models/m0/": "m0",
    "home/alice": "alice",
    "C:\\Users\\alice\\m0": "m0",
    "C:/m0": "m0",
    "./m0": "m0",
    "~/m0": "m0",
    "models/alice/m0": "m0",
    "s3://bucket-of-acme/m0?key=abc": "m0",
    "https://gpu1.acme.com/": HIDDEN,
    "http://alice:pw@gpu1.acme.com:8000/v1/m0": "m0",
    "alice@example.com": "e-mail",
    "org/alice@example.com": "e-mail",
    "endpoint-123456789012": HIDDEN,
    "1234-5678-9012": HIDDEN,
    "bot-555-123-4567": HIDDEN,
    "ft:gpt-4o:acme::abc123": HIDDEN,
    "10.0.0.12": HIDDEN,
    "gpu1.acme.com:8000": HIDDEN,
    "0f8fad5b-d9cb-469f-a165-70867728950e": HIDDEN,
    "what is the secret of alice": HIDDEN,
    "x" * 200: HIDDEN,
    "": HIDDEN,
}


@pytest.mark.parametrize("name", PUBLIC)
def test_names_of_hubs_and_vendors_are_public(name):
    assert is_public(name)
    assert short(name) == name


@pytest.mark.parametrize("name", PRIVATE)
def test_of_other_names_the_last_part_is_shown_if_anything(name):
    assert not is_public(name)
    assert short(name) == PRIVATE[name]


def test_notes_name_no_account_and_no_folder():
    rows = pl.DataFrame(
        {"model": ["/home/alice/m0"] * 3 + ["arn:aws:x:y:123456789012:profile/p1"] * 2 + ["org/m", None]}
    )
    assert model_notes(rows) == ["requests to 3 models: m0 (3), p1 (2), org/m (1)"]
    assert model_notes(rows.head(3)) == []
    assert model_notes(rows.select(pl.lit(1).alias("x"))) == []
