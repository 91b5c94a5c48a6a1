"""Processes that live: one that can't be looked at is not taken for gone."""

from __future__ import annotations

import errno
import os

import pytest
from tests.harness.descriptors import no_descriptor_left

from rallypoint.process import sessions

NO_PROCESS = 2**22 + 1
"""More than any pid."""


def test_a_live_process_is_not_taken_for_gone_when_no_descriptor_is_left() -> None:
    with no_descriptor_left(), pytest.raises(OSError) as caught:
        sessions.session_of(os.getpid())
    assert caught.value.errno == errno.EMFILE


def test_a_process_is_not_taken_for_stopped_when_no_descriptor_is_left() -> None:
    with no_descriptor_left():
        assert not sessions.is_stopped(os.getpid())


def test_A6_a_guard_that_can_not_look_does_not_take_workers_for_gone() -> None:
    assert sessions.kill_sessions({NO_PROCESS}, 0.0)
    with no_descriptor_left():
        assert not sessions.kill_sessions({NO_PROCESS}, 0.0)


@pytest.mark.parametrize("pid", [-1, 0, NO_PROCESS, 2**64, 10**300])
def test_a_number_that_no_process_has_is_no_process(pid: int) -> None:
    assert sessions.read_member(pid) is None
