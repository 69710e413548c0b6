"""The worker's side of the conversation: one JSON object a line, in on stdin, out on stdout.

    benchmark -> worker   {"model": ..., ...}                        settings, once
    worker -> benchmark   {"ready": {"version": ..., ...}}           loaded
    benchmark -> worker   {"prompts": [[int]], "new_tokens": int}    a job
    worker -> benchmark   {"seconds": float, "tokens": [[int]]}      its time and its outputs
    worker -> benchmark   {"error": "..."}                           instead of either; the worker then ends

Only the standard library is used: a worker runs in the environment of the engine that it drives.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Run = Callable[[list[list[int]], int], list[list[int]]]
"""Prompts and the number of tokens to generate for each: the generated tokens."""


def serve(load: Callable[[dict[str, Any]], tuple[Run, dict[str, Any]]]) -> None:
    """Load with the settings that come first, then answer jobs until stdin ends.

    Args:
        load: from the settings to the function that does a job, and facts about the engine.
    """
    # Libraries print to stdout as they please: it becomes stderr, and the replies keep the real one.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")

    try:
        run, facts = load(json.loads(sys.stdin.readline()))
        say({"ready": facts})
        for line in sys.stdin:
            job = json.loads(line)
            start = time.perf_counter()
            tokens = run(job["prompts"], job["new_tokens"])
            say({"seconds": time.perf_counter() - start, "tokens": tokens})
    except Exception as error:
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)
