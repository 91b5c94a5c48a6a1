"""The dynamic handler over every backend: nodes are threads of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as torch_dist
from tests.harness.refusals import refused_in_one_line

from rallypoint.elastic.rendezvous.api import (
    RendezvousClosedException,
    RendezvousInfo,
    RendezvousTimeoutException,
)
from rallypoint.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from rallypoint.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)
from rallypoint.elastic.stores import FileStore, HashStore, TCPStore
from rallypoint.errors import (
    ParameterError,
    RendezvousClosedError,
    RendezvousGracefulExitError,
    SettingsConflictError,
)
from rallypoint.register.contract import MemoryRendezvousBackend, RendezvousBackend

LIMIT_S = 60
Place = tuple[Any, RendezvousBackend]
"""A store, and the backend in it: new objects for each node."""


def seconds(join: float = LIMIT_S, last_call: float = LIMIT_S) -> RendezvousTimeout:
    return RendezvousTimeout(timedelta(seconds=join), timedelta(seconds=last_call))


@contextmanager
def places(kind: str, tmp_path: Path) -> Iterator[Callable[[], Place]]:
    """Where nodes meet; called once for each node."""
    match kind:
        case "memory":
            shared = HashStore(), MemoryRendezvousBackend()
            yield lambda: shared
        case "our server":
            with TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) as server:
                yield lambda: over(TCPStore("127.0.0.1", server.port))
        case "torch's server":
            theirs = torch_store(0, is_master=True)
            yield lambda: over(torch_store(theirs.port))
        case "our file":
            yield lambda: over(FileStore(str(tmp_path / "ours")))
        case "torch's file":
            make = torch_dist.FileStore
            yield lambda: over(make(str(tmp_path / "theirs"), -1))


def torch_store(port: int, is_master: bool = False) -> Any:
    make = torch_dist.TCPStore
    return make("127.0.0.1", port, is_master=is_master, wait_for_workers=False)


def over(store: Any) -> Place:
    return store, C10dRendezvousBackend(store, "job")


class Job:
    """Handlers with the same settings; all are shut down at the end."""

    def __init__(self, place: Callable[[], Place]) -> None:
        self._place = place
        self._made: list[DynamicRendezvousHandler] = []
        self._threads = ThreadPoolExecutor(80)

    def node(self, low: int, high: int, timeout: RendezvousTimeout) -> DynamicRendezvousHandler:
        store, backend = self._place()
        handler = DynamicRendezvousHandler.from_backend(
            "job", store, backend, low, high, "127.0.0.1", timeout, keep_alive_interval=1
        )
        self._made.append(handler)
        return handler

    def nodes(self, count: int, low: int, high: int, **times: float) -> list[Any]:
        return [self.node(low, high, seconds(**times)) for _ in range(count)]

    def meet(self, handlers: list[DynamicRendezvousHandler]) -> list[RendezvousInfo]:
        return list(self._threads.map(lambda handler: handler.next_rendezvous(), handlers))

    def begin(self, call: Callable[[], Any]) -> Any:
        return self._threads.submit(call)

    def end(self) -> None:
        for handler in self._made:
            handler.shutdown()
        self._threads.shutdown()


KINDS = ("memory", "our server", "torch's server", "our file", "torch's file")


@pytest.fixture(params=KINDS)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    before = threading.active_count()
    with places(request.param, tmp_path) as place:
        made = Job(place)
        yield made
        made.end()
    assert not [t for t in threading.enumerate() if "pytest" in t.name], before


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Job]:
    with places("memory", tmp_path) as place:
        made = Job(place)
        yield made
        made.end()


def test_R1_all_meet_at_once_when_the_maximum_has_come(job: Job) -> None:
    met = job.meet(job.nodes(4, 2, 4))
    assert sorted(info.rank for info in met) == [0, 1, 2, 3]
    assert {info.world_size for info in met} == {4}
    assert len({info.bootstrap_store_info for info in met}) == 1
    store, rank, world_size = met[0]
    store.set(f"from {rank}", "x")
    assert met[1].store.get(f"from {rank}") == b"x"
    assert world_size == 4


def test_R1_the_last_call_ends_without_those_who_did_not_come(job: Job) -> None:
    met = job.meet(job.nodes(2, 2, 5, last_call=0.2))
    assert {info.world_size for info in met} == {2}


def test_R1_R4_a_round_forms_at_once_when_everybody_is_back(job: Job) -> None:
    nodes = job.nodes(3, 3, 9, last_call=0.2)
    first = {node: info.rank for node, info in zip(nodes, job.meet(nodes), strict=True)}
    met = job.begin(nodes[0].next_rendezvous)  # its workers have failed, say
    assert all(node.wait_for_change(LIMIT_S) for node in nodes[1:])
    assert [node.num_nodes_waiting() for node in nodes[1:]] == [1, 1]
    second = job.meet(nodes[1:])
    ranks = {nodes[0]: met.result(), **dict(zip(nodes[1:], second, strict=True))}
    assert {node: info.rank for node, info in ranks.items()} == first
    assert met.result().bootstrap_store_info == second[0].bootstrap_store_info


def test_R2_R5_late_nodes_are_admitted_and_who_leaves_does_not_close(job: Job) -> None:
    a, b, c = job.nodes(3, 1, 3, last_call=0.2)
    assert job.meet([a])[0].world_size == 1
    late = job.begin(b.next_rendezvous)
    assert a.wait_for_change(LIMIT_S)
    assert job.meet([a])[0].world_size == 2
    assert late.result().rank == 1
    a.leave()
    assert b.wait_for_change(LIMIT_S)
    assert not b.is_closed()
    assert (job.meet([b])[0].rank, b.num_nodes_waiting()) == (0, 0)
    assert not c.is_closed()


def test_R5_a_closed_job_is_closed_for_all_who_run_wait_stand_by_or_come(job: Job) -> None:
    a, b = job.nodes(2, 2, 2)
    job.meet([a, b])
    (spare,) = job.nodes(1, 2, 2)
    standing_by = job.begin(spare.next_rendezvous)
    b_waits = job.begin(lambda: b.wait_for_change(LIMIT_S))
    wait_standby(a)
    a.set_closed()
    a.set_closed()
    assert b_waits.result()
    assert (a.is_closed(), b.is_closed()) == (True, True)
    with pytest.raises(RendezvousGracefulExitError, match="'job' is over: closed by a node"):
        standing_by.result()
    with pytest.raises(RendezvousClosedException, match="'job' is over"):
        job.node(2, 2, seconds()).next_rendezvous()
    with pytest.raises(RendezvousClosedError):
        b.next_rendezvous()


def wait_standby(handler: DynamicRendezvousHandler) -> None:
    """Until somebody stands by, as the state says."""
    from rallypoint.core.round_state import MemberState
    from rallypoint.elastic.rendezvous.shared.round import decode

    ends_at = threading.Event()
    for _ in range(LIMIT_S * 100):
        found = handler._backend.get_state()
        if found is not None and decode(found[0]).round.counts[MemberState.STANDBY]:
            return
        ends_at.wait(0.01)
    raise AssertionError("nobody stands by")


def test_R3_a_timeout_says_how_many_came_and_is_no_end(job: Job) -> None:
    a, b = job.nodes(2, 2, 2, join=0.5)
    with pytest.raises(RendezvousTimeoutException, match=r"waited 0.5 s for 2 nodes .* 1 came"):
        a.next_rendezvous()
    slow = job.nodes(1, 2, 2)
    assert not b.is_closed()
    assert slow[0].num_nodes_waiting() == 0


def test_R7_other_settings_are_refused_and_both_sides_are_shown(job: Job) -> None:
    a, b = job.node(2, 2, seconds()), job.node(1, 2, seconds())
    job.meet_later = job.begin(a.next_rendezvous)  # type: ignore[attr-defined]
    wait_joined(a)
    with pytest.raises(SettingsConflictError, match=r"min_nodes=1 .* min_nodes=2"):
        b.next_rendezvous()
    b.leave()
    (c,) = job.nodes(1, 2, 2)
    assert c.next_rendezvous().world_size == 2


def wait_joined(handler: DynamicRendezvousHandler) -> None:
    pause = threading.Event()
    for _ in range(LIMIT_S * 100):
        if handler._backend.get_state() is not None:
            return
        pause.wait(0.01)
    raise AssertionError("nobody has joined")


def test_sixty_four_nodes_meet_over_one_torch_store(tmp_path: Path) -> None:
    with places("torch's server", tmp_path) as place:
        job = Job(place)
        nodes = job.nodes(64, 64, 64)
        assert sorted(info.rank for info in job.meet(nodes)) == list(range(64))
        assert sorted(info.rank for info in job.meet(nodes)) == list(range(64))
        job.end()


def test_a_callback_is_called_on_a_change_until_it_is_taken_back(quick: Job) -> None:
    a, b = quick.nodes(2, 2, 2)
    quick.meet([a, b])
    called, other = threading.Event(), threading.Event()
    a.on_change(called.set)
    a.on_change(other.set)()
    b.leave()
    assert called.wait(LIMIT_S)
    assert not other.is_set()


def test_a_callback_that_raises_spoils_nothing(quick: Job) -> None:
    a, b = quick.nodes(2, 2, 2)
    quick.meet([a, b])
    called = threading.Event()
    a.on_change(lambda: [][0])
    a.on_change(called.set)
    b.leave()
    assert a.wait_for_change(LIMIT_S)
    assert called.wait(LIMIT_S)
    assert a.num_nodes_waiting() == 1
    assert a.shutdown()


def test_who_waits_while_its_node_leaves_is_told_and_does_not_begin_anew(quick: Job) -> None:
    a, b = quick.nodes(2, 1, 2)
    quick.meet([a, b])
    waits = quick.begin(lambda: b.wait_for_change(LIMIT_S))
    pause = threading.Event()
    while b._driver is None or not b._driver.view._waiting:
        pause.wait(0.01)
    b.leave()
    assert waits.result()
    assert b._driver is None


def test_the_twins_of_a_running_loop_do_the_same(quick: Job) -> None:
    async def both() -> list[RendezvousInfo]:
        a, b = quick.nodes(2, 2, 2)
        met = await asyncio.gather(a.next_rendezvous_async(), b.next_rendezvous_async())
        assert await a.num_nodes_waiting_async() == 0
        assert not await a.is_closed_async()
        assert not await a.wait_for_change_async(0.01)
        await b.set_closed_async()
        assert await a.wait_for_change_async(LIMIT_S)
        assert await a.is_closed_async()
        assert await a.shutdown_async()
        return list(met)

    assert sorted(info.rank for info in asyncio.run(both())) == [0, 1]


def test_a_handler_serves_several_threads_at_once(quick: Job) -> None:
    a, b = quick.nodes(2, 2, 2)
    met = quick.begin(a.next_rendezvous)
    asked = [quick.begin(a.is_closed) for _ in range(8)]
    assert [one.result() for one in asked] == [False] * 8
    b.next_rendezvous()
    assert met.result().world_size == 2


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: handler(low=0), "min_nodes=0: needs 1 or more"),
    (lambda: handler(low=3, high=2), "max_nodes=2 is less than min_nodes=3"),
    (lambda: handler(store=object()), "is not a store, it has no set"),
    (lambda: handler(interval=0), "keep_alive_interval=0"),
    (lambda: RendezvousTimeout(join=timedelta(0)), "the rendezvous timeout join="),
    (lambda: RendezvousTimeout(close=timedelta(seconds=-1)), "the rendezvous timeout close="),
    (lambda: C10dRendezvousBackend(HashStore(), ""), "run_id=''"),
    (lambda: C10dRendezvousBackend(None, "x"), "store=None: is not a store, it has no set, get"),
]


def handler(
    low: int = 1, high: int = 2, interval: float = 1, store: Any = None
) -> DynamicRendezvousHandler:
    return DynamicRendezvousHandler.from_backend(
        "job",
        HashStore() if store is None else store,
        MemoryRendezvousBackend(),
        low,
        high,
        keep_alive_interval=interval,
    )


@pytest.mark.parametrize(("wrong", "text"), BAD, ids=[text for _, text in BAD])
def test_bad_input_is_one_clear_error(wrong: Callable[[], object], text: str) -> None:
    with refused_in_one_line(ParameterError, text):
        wrong()


def test_a_job_without_a_name_is_refused_as_with_torch() -> None:
    store = HashStore()
    with pytest.raises(ValueError, match="run_id='': needs a name that all nodes"):
        DynamicRendezvousHandler.from_backend("", store, C10dRendezvousBackend(store, "a"), 1, 2)
