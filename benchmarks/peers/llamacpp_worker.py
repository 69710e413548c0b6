"""llama.cpp through llama-cpp-python: all requests as sequences of one context, in its own environment.

The package's high-level class serves one sequence; here the library's batches are filled directly.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
from protocol import Run, serve


def load(settings: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
    llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(settings["gguf"].encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise RuntimeError("llama.cpp cannot load the file")
    return Sequences(model, settings).run, {"version": llama_cpp.__version__, "weights": settings["weights"]}


@llama_cpp.llama_log_callback
def _quiet(level: int, text: bytes, data: Any) -> None:
    pass


class Sequences:
    """A context for `max_sequences` sequences of at most `max_length` tokens."""

    def __init__(self, model: Any, settings: dict[str, Any]) -> None:
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = settings["max_sequences"] * settings["max_length"]
        parameters.n_seq_max = settings["max_sequences"]
        parameters.n_batch = settings["batch_tokens"]
        parameters.n_ubatch = settings["batch_tokens"]
        parameters.n_threads = parameters.n_threads_batch = settings["threads"]
        self.batch_tokens = settings["batch_tokens"]
        self.context = llama_cpp.llama_init_from_model(model, parameters)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.batch = llama_cpp.llama_batch_init(self.batch_tokens, 0, 1)

    def run(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
        outputs: list[list[int]] = [[] for _ in prompts]
        rows = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        for begin in range(0, len(rows), self.batch_tokens):
            self._compute(rows[begin : begin + self.batch_tokens], outputs)
        for step in range(new_tokens - 1):
            self._compute([(outputs[i][-1], len(prompt) + step, i, True) for i, prompt in enumerate(prompts)], outputs)
        return outputs

    def _compute(self, rows: list[tuple[int, int, int, bool]], outputs: list[list[int]]) -> None:
        """Compute rows of (token, position, sequence, samples) and append the greedy tokens."""
        import numpy as np

        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, samples) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = samples
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        for i, (_, _, sequence, samples) in enumerate(rows):
            if samples:
                logits = llama_cpp.llama_get_logits_ith(self.context, i)
                outputs[sequence].append(int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax()))


if __name__ == "__main__":
    serve(load)
