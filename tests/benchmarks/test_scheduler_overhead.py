"""The loads are what the benchmark says they are."""

from __future__ import annotations

from peers.machine import machine
from scheduler_overhead import BLOCK_SIZE, Case, Load

from inferdoc.devices import find_device


def test_with_churn_one_request_leaves_and_one_joins_in_each_step_beside_long_ones():
    load = Load(Case(8, 64, prefix_caching=False, churn=True))
    scheduler = load._engine.scheduler
    running = [request.id for request in scheduler.running]
    for _ in range(5):
        load._engine.step(load._start)
        before, running = running, [request.id for request in scheduler.running]
        assert len(set(before) - set(running)) == len(set(running) - set(before)) == 1
    staying = [request for request in scheduler.running if request.id < 6]
    assert len(staying) == 6
    assert all(request.num_computed > 64 - BLOCK_SIZE for request in staying)


def test_cores_are_counted_in_whole_numbers():
    assert isinstance(machine(find_device("cpu"))["cores"], int)
