"""The queue and the thread between an agent and whoever is told: nobody waits for a receiver."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from tests.harness.unprivileged import become_somebody

from rallypoint.observe.queue import BoundedQueue

LONG_S = 60.0


def test_all_that_was_put_arrives_in_order_before_close_returns() -> None:
    got: list[int] = []
    closed = threading.Event()
    queue = BoundedQueue(got.append, closed.set)
    for n in range(1000):
        queue.put(n)
    assert queue.close(LONG_S) == ""
    assert got == list(range(1000))
    assert closed.is_set()
    assert queue.close(LONG_S) == ""


def test_a_receiver_that_stands_still_stops_nobody_and_what_it_missed_is_counted() -> None:
    entered, release = threading.Event(), threading.Event()

    def stand_still(item: int) -> None:
        entered.set()
        release.wait(LONG_S)

    queue = BoundedQueue(stand_still, capacity=10)
    queue.put(0)
    entered.wait(LONG_S)
    for n in range(15):
        queue.put(n)
    assert queue.lost == 5
    assert queue.close(0.01) == "16 dropped, as it was too slow"
    release.set()


def test_a_receiver_that_raises_is_counted_with_its_first_error() -> None:
    got: list[int] = []

    def even_only(item: int) -> None:
        if item % 2:
            raise ValueError(f"{item} is odd")
        got.append(item)

    queue = BoundedQueue(even_only)
    for n in range(6):
        queue.put(n)
    assert queue.close(LONG_S) == "3 failed: ValueError: 1 is odd"
    assert got == [0, 2, 4]
    assert queue.lost == 3


def test_a_machine_without_room_for_a_thread_stops_nobody_and_what_is_lost_is_counted() -> None:
    program = (
        "import resource\n"
        "from rallypoint.observe.queue import BoundedQueue\n"
        "queue = BoundedQueue(print)\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\n"
        "queue.put(1)\n"
        "print(queue.lost, queue.close(1.0))\n"
    )
    command = [*become_somebody(), sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S)
    if os.geteuid():
        pytest.skip("other processes of this user count towards its limit")
    assert run.stdout == "1 1 failed: RuntimeError: can't start new thread\n", run.stderr


def test_a_receiver_that_wants_to_end_the_program_is_counted_and_goes_on() -> None:
    got: list[int] = []

    def leave_first(item: int) -> None:
        if item == 0:
            raise SystemExit("leaving\n")
        got.append(item)

    queue = BoundedQueue(leave_first)
    for n in range(3):
        queue.put(n)
    assert queue.close(LONG_S) == r"1 failed: SystemExit: 'leaving\n'"
    assert got == [1, 2]


def test_a_receiver_that_hangs_at_its_end_has_lost_nothing() -> None:
    received, release = threading.Event(), threading.Event()

    def close() -> None:
        release.wait(LONG_S)

    queue: BoundedQueue[int] = BoundedQueue(lambda item: received.set(), close)
    queue.put(1)
    assert received.wait(LONG_S)
    assert queue.close(1.0) == "it did not close in time"
    assert queue.lost == 0
    release.set()


def test_what_is_put_after_the_end_is_dropped() -> None:
    queue: BoundedQueue[int] = BoundedQueue(lambda item: None)
    queue.close(LONG_S)
    queue.put(1)
    assert queue.lost == 1


def test_a_receiver_that_can_not_be_closed_says_so() -> None:
    def close() -> None:
        raise OSError(5, "Input/output error")

    assert BoundedQueue(lambda item: None, close).close(LONG_S) == "Input/output error"
