"""Join requests in a shared store: whose they are, and that none remains."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.harness.dynamic_node import quick_node
from tests.harness.one_agent import eventually

from rallypoint.core.events import NodeJoined
from rallypoint.core.model import Candidate, NodeRef, SharedSettings
from rallypoint.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from rallypoint.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from rallypoint.elastic.rendezvous.shared import round as shared_round
from rallypoint.elastic.stores import HashStore

STATE_KEY = "rallypoint.elastic.rendezvous.job"


@pytest.fixture
def nodes() -> Iterator[list[DynamicRendezvousHandler]]:
    made: list[DynamicRendezvousHandler] = []
    yield made
    for handler in made:
        handler.shutdown()


def node(store: HashStore) -> DynamicRendezvousHandler:
    return quick_node(C10dRendezvousBackend(store, "job"), 2, 4, store=store)


def meet(handlers: list[DynamicRendezvousHandler]) -> list[int]:
    with ThreadPoolExecutor() as threads:
        return sorted(
            info.world_size for info in threads.map(lambda h: h.next_rendezvous(), handlers)
        )


def of_kind(store: HashStore, kind: str) -> list[str]:
    return [key for key in store.list_keys() if f".{kind}." in key]


def request_of_a_dead_node(name: str) -> bytes:
    settings = node(HashStore()).settings.shared()
    join = NodeJoined(NodeRef(name, f"{name}.1"), 1, Candidate(1, "default", name, 1), settings)
    return shared_round.encode_join_request(join)


def test_F5_join_requests_are_deleted_when_they_were_read(
    nodes: list[DynamicRendezvousHandler],
) -> None:
    store = HashStore()
    nodes += [node(store) for _ in range(3)]
    while meet(nodes) != [3, 3, 3]:
        pass
    eventually(lambda: not of_kind(store, "join_request"), "no join request is left")
    assert len(of_kind(store, "beat")) == 3
    for handler in nodes:
        handler.shutdown()
    assert not of_kind(store, "join_request")
    assert not of_kind(store, "beat")


def test_F5_after_a_deleted_state_the_join_requests_of_the_dead_form_no_world(
    nodes: list[DynamicRendezvousHandler],
) -> None:
    store = HashStore()
    backend = C10dRendezvousBackend(store, "job")
    for name in ("ghost1", "ghost2", "ghost3", "ghost4"):
        backend.post_join_request(request_of_a_dead_node(name))
    store.set(STATE_KEY, "damaged")
    store.delete_key(STATE_KEY)  # as the message about a damaged state says
    nodes += [node(store) for _ in range(2)]
    assert meet(nodes) == [2, 2]
    eventually(lambda: not of_kind(store, "join_request"), "theirs are deleted, too")


def test_F5_nobody_takes_in_the_dead_by_ending_the_job(
    nodes: list[DynamicRendezvousHandler],
) -> None:
    store = HashStore()
    backend = C10dRendezvousBackend(store, "job")
    backend.post_join_request(request_of_a_dead_node("ghost"))
    nodes.append(node(store))
    nodes[0].leave()
    assert backend.get_state() is None
    nodes[0].set_closed()
    found = backend.get_state()
    assert found is not None
    assert not shared_round.decode(found[0]).round.members


def test_F5_nodes_whose_state_is_deleted_while_they_run_meet_again(
    nodes: list[DynamicRendezvousHandler],
) -> None:
    store = HashStore()
    nodes += [node(store) for _ in range(2)]
    assert meet(nodes) == [2, 2]
    store.delete_key(STATE_KEY)
    for handler in nodes:
        assert handler.wait_for_change(60)
    assert meet(nodes) == [2, 2]


def test_F5_a_new_state_begins_with_the_join_request_of_who_makes_it() -> None:
    settings = SharedSettings("job", 2, 4)
    fresh = shared_round.new_state(settings, "life", "w", own_request=7)
    requests = [None] * 6 + [request_of_a_dead_node("late")]
    assert fresh.taken == 6
    assert shared_round.take_join_requests(fresh, requests[fresh.taken :], "w", skip_gap=False) == 1
    assert shared_round.new_state(settings, "life", "w").taken == 0
