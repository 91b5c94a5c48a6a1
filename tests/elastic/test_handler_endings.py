"""How a handler ends: left, shut down, interrupted, or dropped without a word."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.harness.bare_backend import members
from tests.harness.coordinator_nodes import place
from tests.harness.dynamic_node import quick_node
from tests.harness.one_agent import eventually

from rallypoint.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from rallypoint.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from rallypoint.elastic.rendezvous.led.loop_handler import SHARED
from rallypoint.elastic.stores import TCPStore
from rallypoint.errors import ParameterError, RendezvousClosedError
from rallypoint.register.contract import MemoryRendezvousBackend, RendezvousBackend


def node(backend: RendezvousBackend, low: int = 1) -> DynamicRendezvousHandler:
    return quick_node(backend, low, 2)


class BackendThreads:
    """Those that were started since; other tests' may still be ending."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def count(self) -> int:
        started = set(threading.enumerate()) - self._before
        return sum(thread.name.startswith("rallypoint-backend") for thread in started)


def meet_both(*handlers: DynamicRendezvousHandler) -> None:
    """Until both are in one round; who was early grows."""
    with ThreadPoolExecutor() as threads:
        while min(threads.map(lambda h: h.next_rendezvous().world_size, handlers)) < 2:
            pass


def test_who_is_dropped_without_a_word_has_left_and_keeps_nothing() -> None:
    with TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) as server:
        threads = BackendThreads()
        assert SHARED.loop.is_running()  # it stays, for all handlers of the process
        before = len(os.listdir("/proc/self/fd"))
        store = TCPStore("127.0.0.1", server.port)
        backend = C10dRendezvousBackend(store, "job")
        handler = node(C10dRendezvousBackend(store, "job"))
        other = node(backend)
        meet_both(handler, other)
        assert threads.count() == 4
        del handler
        gc.collect()
        assert other.wait_for_change(60)
        eventually(lambda: members(backend) == 1, "the dropped handler has left")
        eventually(lambda: threads.count() == 2, "its threads are gone")
        other.shutdown()
        store.close()
        eventually(lambda: len(os.listdir("/proc/self/fd")) <= before, "its sockets are gone")


def test_a_node_of_a_coordinator_that_is_dropped_has_left() -> None:
    with place(1, 2, last_call_timeout=0.2) as here:
        a, b = here.handler(), here.handler()
        while here.meet(a, b)[0].world_size < 2:
            pass
        here.forget(b)
        del b
        gc.collect()
        assert a.wait_for_change(60)
        assert here.meet(a)[0].world_size == 1


def test_leaving_while_another_thread_joins_ends_its_call() -> None:
    backend = MemoryRendezvousBackend()
    handler, raised = node(backend, low=2), list[BaseException]()

    def join() -> None:
        try:
            handler.next_rendezvous()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=join)
    thread.start()
    eventually(lambda: members(backend) == 1, "it has joined")
    handler.leave()
    thread.join(60)
    assert [type(error) for error in raised] == [RendezvousClosedError]
    assert members(backend) == 0


def test_what_was_shut_down_says_so_and_starts_nothing() -> None:
    threads = BackendThreads()
    handler = node(MemoryRendezvousBackend())
    handler.next_rendezvous()
    assert handler.shutdown()
    eventually(lambda: threads.count() == 0, "no thread is left")
    assert handler.is_closed()
    assert handler.num_nodes_waiting() == 0
    assert handler.wait_for_change(60)
    handler.set_closed()
    assert handler.shutdown()
    with pytest.raises(RendezvousClosedError, match="was shut down"):
        handler.next_rendezvous()
    assert threads.count() == 0


async def test_a_cancelled_join_leaves_no_member_behind() -> None:
    backend = MemoryRendezvousBackend()
    handler = node(backend, low=2)
    joining = asyncio.create_task(handler.next_rendezvous_async())
    async with asyncio.timeout(60):
        await asyncio.to_thread(eventually, lambda: members(backend) == 1, "it has joined")
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining
    eventually(lambda: members(backend) == 0, "it has left")
    handler.shutdown()


@pytest.mark.parametrize("make", [node, None], ids=["dynamic", "coordinator"])
def test_a_timeout_that_is_no_number_is_one_clear_error(
    make: Callable[[RendezvousBackend], DynamicRendezvousHandler] | None,
) -> None:
    with place(1, 1) as here:
        handler = make(MemoryRendezvousBackend()) if make else here.handler()
        handler.next_rendezvous()
        with pytest.raises(ParameterError, match="timeout=nan: needs seconds"):
            handler.wait_for_change(float("nan"))
        assert not handler.wait_for_change(-1)
        assert not handler.wait_for_change(0)
        handler.shutdown()
