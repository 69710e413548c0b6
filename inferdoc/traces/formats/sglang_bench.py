"""SGLang ``bench_serving --output-details``: JSONL, one run a line, the lists of vLLM's benchmark without start times.

``--cache-report`` adds ``cached_tokens``. Times in s; arrival order is the order of the lists.
"""

from __future__ import annotations

from collections.abc import Iterable

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.format import Format, has
from inferdoc.traces.formats.vllm_bench import NEEDED, read_runs, without_lists
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    return read_runs("sglang-bench", "--output-details", records, ledger)


FORMAT = Format(
    "sglang-bench",
    "SGLang benchmark with details",
    has(*NEEDED, "total_output_tokens_retokenized"),
    read,
    arrivals_by_tool=True,
)
REFUSALS = (without_lists("total_output_tokens_retokenized"),)
