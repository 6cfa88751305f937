"""The gate: who waits in this process, first come first served."""

import threading
import time

import pytest

from fenced_locks.locks.gate import Gate, ThreadPlace
from tests.helpers import run_threads


class Place:
    """A place that counts how often it was called."""

    def __init__(self):
        self.calls = 0

    def call(self):
        self.calls += 1
        return True


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def queue(gate):
    """Three places at the gate, in order."""
    places = [Place() for _ in range(3)]
    for place in places:
        gate.join("order:1", place)
    return places


def calls(places):
    return [place.calls for place in places]


def test_only_the_front_is_called_and_once(queue):
    assert calls(queue) == [1, 0, 0]


def test_who_leaves_the_front_has_the_next_one_called(gate, queue):
    gate.leave("order:1", queue[0])
    assert calls(queue) == [1, 1, 0]
    gate.leave("order:1", queue[1])
    assert calls(queue) == [1, 1, 1]


def test_who_leaves_from_the_middle_has_nobody_called(gate, queue):
    gate.leave("order:1", queue[1])
    assert calls(queue) == [1, 0, 0]
    gate.leave("order:1", queue[0])
    assert calls(queue) == [1, 0, 1]


def test_who_leaves_from_the_end_has_nobody_called(gate, queue):
    gate.leave("order:1", queue[2])
    gate.leave("order:1", queue[0])
    assert calls(queue) == [1, 1, 0]


def test_who_was_not_there_may_leave(gate, queue):
    gate.leave("order:1", Place())
    gate.leave("order:2", queue[0])
    assert calls(queue) == [1, 0, 0]


def test_leaving_twice_is_leaving_once(gate, queue):
    gate.leave("order:1", queue[0])
    gate.leave("order:1", queue[0])
    assert calls(queue) == [1, 1, 0]


def test_who_comes_again_is_at_the_end(gate, queue):
    gate.leave("order:1", queue[0])
    gate.join("order:1", queue[0])
    gate.leave("order:1", queue[1])
    assert calls(queue) == [1, 1, 1]
    gate.leave("order:1", queue[2])
    assert calls(queue) == [2, 1, 1]


def test_resources_do_not_wait_for_each_other(gate, queue):
    other = Place()
    gate.join("order:2", other)
    assert other.calls == 1


def test_a_resource_is_crowded_while_somebody_waits_for_it(gate, queue):
    assert gate.is_crowded("order:1")
    assert not gate.is_crowded("order:2")
    for place in queue:
        gate.leave("order:1", place)
    assert not gate.is_crowded("order:1")


def test_a_gate_that_was_left_by_everybody_keeps_nothing(gate, queue):
    for place in queue:
        gate.leave("order:1", place)
    assert not gate._queues


def test_reset_forgets_everybody(gate, queue):
    gate.reset()
    assert not gate.is_crowded("order:1")
    newcomer = Place()
    gate.join("order:1", newcomer)
    assert newcomer.calls == 1


def test_reset_needs_no_lock_that_a_thread_held_when_the_process_forked(gate, queue):
    entered, leave = threading.Event(), threading.Event()

    def holder():
        with gate._changing:
            entered.set()
            leave.wait(5)

    thread = threading.Thread(target=holder)
    thread.start()
    entered.wait(10)
    gate.reset()
    gate.join("order:1", Place())
    assert thread.is_alive()
    leave.set()
    thread.join()


def test_a_signal_handler_may_join_while_the_gate_is_changing(gate):
    with gate._changing:
        gate.join("order:1", Place())
    assert gate.is_crowded("order:1")


class TestThreadPlace:
    def test_waits_no_longer_than_it_may(self):
        started = time.monotonic()
        assert not ThreadPlace().wait(0.05)
        assert 0.04 < time.monotonic() - started < 5

    @pytest.mark.parametrize("seconds", [0, -1])
    def test_does_not_wait_when_there_is_no_time(self, seconds):
        assert not ThreadPlace().wait(seconds)

    @pytest.mark.parametrize("seconds", [None, 1, threading.TIMEOUT_MAX * 2])
    def test_is_in_front_once_it_was_called(self, seconds):
        place = ThreadPlace()
        run_threads(lambda: place.wait(seconds), place.call)
        assert place.wait(seconds)

    def test_stays_in_front(self):
        place = ThreadPlace()
        place.call()
        assert [place.wait(0) for _ in range(3)] == [True] * 3

    def test_threads_pass_the_gate_one_at_a_time_and_all_of_them(self, gate):
        inside, most = [], []

        def worker():
            for _ in range(50):
                place = ThreadPlace()
                gate.join("order:1", place)
                assert place.wait(10)
                inside.append(place)
                most.append(len(inside))
                inside.pop()
                gate.leave("order:1", place)

        run_threads(*[worker] * 8)
        assert most == [1] * 400
        assert not gate.is_crowded("order:1")
