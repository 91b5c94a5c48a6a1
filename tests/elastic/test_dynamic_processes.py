"""Jobs without a coordinator: every node a process, and a store without logic between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as torch_dist
from tests.harness.nodes import Nodes
from tests.harness.one_agent import eventually

from rallypoint.core.round_state import MemberState
from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from rallypoint.elastic.rendezvous.shared.round import decode
from rallypoint.elastic.stores.tcp_store import TCPStore


@pytest.fixture(params=["our server", "torch's server", "a file"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The backend, the endpoint, and who hosts: none of the nodes."""
    match request.param:
        case "our server":
            with TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) as server:
                yield tcp(server.port)
        case "torch's server":
            torch_server = torch_dist.TCPStore(
                "127.0.0.1", 0, is_master=True, wait_for_workers=False
            )
            yield tcp(torch_server.port)
        case _:
            path = str(tmp_path / "rendezvous")
            yield {"backend": "file", "endpoint": path, "insecure": True}


def tcp(port: int) -> dict[str, Any]:
    return {"backend": "c10d", "endpoint": f"127.0.0.1:{port}", "is_host": False}


def test_R3_R4_a_killed_node_is_replaced_and_rank_0_stays(where: dict[str, Any]) -> None:
    with Nodes(min_nodes=1, max_nodes=2, **where) as nodes:
        a, b = nodes.start(), nodes.start()
        ranks = {node: node.wait_world(2)["rank"] for node in (a, b)}
        survivor, victim = (a, b) if ranks[a] == 0 else (b, a)
        victim.kill()
        survivor.wait("over")
        alone = survivor.wait_world(1)
        assert alone["rank"] == 0
        fresh = nodes.start()
        met = [survivor.wait_world(2), fresh.wait_world(2)]
        assert [m["rank"] for m in met] == [0, 1]
        assert met[0]["bootstrap"] == met[1]["bootstrap"] != alone["bootstrap"]


def test_R2_R5_a_surplus_node_stands_by_and_is_promoted_or_not_needed(
    where: dict[str, Any],
) -> None:
    with Nodes(min_nodes=2, max_nodes=2, **where) as nodes:
        a, b = nodes.start(), nodes.start()
        assert {a.wait_world(2)["rank"], b.wait_world(2)["rank"]} == {0, 1}
        spares = [nodes.start(), nodes.start()]
        eventually(lambda: standing_by(where) == 2, "two nodes stand by")
        assert all(spare.says_nothing() for spare in spares)
        b.order("leave")
        a.wait_world(2)
        eventually(lambda: not all(spare.says_nothing() for spare in spares), "a promotion")
        [promoted] = [spare for spare in spares if not spare.says_nothing()]
        [idle] = [spare for spare in spares if spare is not promoted]
        assert promoted.wait_world(2)["rank"] == 1
        a.order("shutdown")
        promoted.wait("closed")
        idle.wait("not needed")


def standing_by(where: dict[str, Any]) -> int:
    params = RendezvousParameters(run_id="job", min_nodes=2, max_nodes=2, **where)
    params.config.setdefault("store_type", "file" if where["backend"] == "file" else "tcp")
    backend, _ = create_backend(params)
    found = backend.get_state()
    return decode(found[0]).round.counts[MemberState.STANDBY] if found else 0


def test_W4_a_paused_node_learns_that_it_was_expelled_and_comes_back(
    where: dict[str, Any],
) -> None:
    with Nodes(min_nodes=1, max_nodes=2, **where) as nodes:
        a, b = nodes.start(), nodes.start()
        a.wait_world(2), b.wait_world(2)
        b.pause()
        a.wait_world(1)
        b.resume()
        b.wait("over")
        assert b.wait_world(2)["rank"] == 1
        assert a.wait_world(2)["rank"] == 0
