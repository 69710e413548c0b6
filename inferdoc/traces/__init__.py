"""Traces: what a user's traffic looks like, in one columnar form, whatever tool wrote it."""

from inferdoc.traces.formats import FORMATS
from inferdoc.traces.messages import render
from inferdoc.traces.prefixes import IdealHits, WindowHits, ideal_hits, window_hits
from inferdoc.traces.reading import read_trace
from inferdoc.traces.tokens import fit_context, tokenize, with_token_ids
from inferdoc.traces.trace import SCHEMA, Trace

__all__ = [
    "FORMATS",
    "SCHEMA",
    "IdealHits",
    "Trace",
    "WindowHits",
    "fit_context",
    "ideal_hits",
    "read_trace",
    "render",
    "tokenize",
    "window_hits",
    "with_token_ids",
]
