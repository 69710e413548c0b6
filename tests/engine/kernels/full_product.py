"""Every group, head dim, block size, mix of queries and path. Half an hour on two cores, so not collected by itself:

    make test-kernels-full

Window, soft cap, sinks and dtype take turns from case to case; the raw product would be 16 times as long.
"""

from __future__ import annotations

import pytest
from attention_cases import check, full_product


@pytest.mark.parametrize("case", full_product(), ids=str)
def test_exact_output(case):
    check(case)
