"""Models: what they are (`ModelSpec`), what they need, and loading them. Nothing here knows an engine."""

from __future__ import annotations

from inferdoc.models.checkpoint import Checkpoint, checkpoint_bytes
from inferdoc.models.config_file import Source, find_source, read_spec
from inferdoc.models.embedded import EMBEDDED, bundled_trace_path, embedded_draft_path, embedded_path
from inferdoc.models.layers import LayerKind, LayerSpec
from inferdoc.models.loading import LoadedModel, load_model, model_without_weights, sequence_start
from inferdoc.models.planning import Plan, estimate
from inferdoc.models.revision import model_revision
from inferdoc.models.spec import ModelSpec
from inferdoc.models.support import check_supported

__all__ = [
    "EMBEDDED",
    "Checkpoint",
    "LayerKind",
    "LayerSpec",
    "LoadedModel",
    "ModelSpec",
    "Plan",
    "Source",
    "bundled_trace_path",
    "check_supported",
    "checkpoint_bytes",
    "embedded_draft_path",
    "embedded_path",
    "estimate",
    "find_source",
    "load_model",
    "model_revision",
    "model_without_weights",
    "read_spec",
    "sequence_start",
]
