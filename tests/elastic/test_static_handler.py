"""Fixed ranks: a failure and a restart are everybody's, and the ranks stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.cluster import free_port
from tests.harness.nodes import Node, Nodes
from tests.harness.refusals import refused_in_one_line

from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.registry import get_rendezvous_handler
from rallypoint.elastic.rendezvous.static_tcp_rendezvous import StaticRendezvousHandler
from rallypoint.errors import ParameterError


def static(tmp_path: Path, count: int) -> Nodes:
    token = tmp_path / "token"
    token.write_text("11" * 32 + "\n")
    token.chmod(0o600)
    return Nodes(
        backend="static",
        endpoint=f"127.0.0.1:{free_port()}",
        min_nodes=count,
        max_nodes=count,
        token_file=str(token),
    )


def test_R4_ranks_are_those_that_were_given_whoever_comes_first(tmp_path: Path) -> None:
    with static(tmp_path, 3) as nodes:
        started: dict[int, Node] = {rank: nodes.start(rank=rank) for rank in (2, 1, 0)}
        for rank, node in started.items():
            assert node.wait_world(3)["rank"] == rank


def test_R3_W13_a_lost_node_and_a_restart_are_told_to_all_and_ranks_stay(tmp_path: Path) -> None:
    with static(tmp_path, 3) as nodes:
        zero, one, two = (nodes.start(rank=rank) for rank in range(3))
        first = [node.wait_world(3)["bootstrap"] for node in (zero, one, two)]
        one.kill()
        for node in (zero, two):
            node.wait("over")
        again = nodes.start(rank=1)
        met = [node.wait_world(3) for node in (zero, again, two)]
        assert [said["rank"] for said in met] == [0, 1, 2]
        assert len({tuple(said["bootstrap"]) for said in met}) == 1
        assert met[0]["bootstrap"] != first[0]


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: made(rank=None), "the static rendezvous needs rank=K"),
    (lambda: made(rank=2), "rank=2: needs 0..1"),
    (lambda: made(rank="x"), "rank='x': needs a whole number"),
    (lambda: made(least=1), "needs a fixed number of nodes"),
    (
        lambda: made(backend="statik"),
        "unknown rendezvous backend 'statik': known are c10d, etcd, file",
    ),
    (lambda: made(backend="file"), "backend 'file': nodes are not authenticated, and everyone"),
    (lambda: made(backend="file", insecure=False), "give insecure=True on every node"),
    (lambda: made(endpoint="a:b"), "the endpoint 'a:b': b is not a valid port (1..65535)"),
    (lambda: made(endpoint="a:65536"), "65536 is not a valid port (1..65535)"),
    (lambda: made(endpoint="a:0"), "the endpoint 'a:0': port 0 is any free port, which other"),
    (lambda: made(backend="c10d", endpoint="a:0", rank=None), "'a:0': port 0 is any free port"),
    (lambda: made(endpoint="fe80::1:x"), "is not an IPv6 address; one with a port is written"),
    (lambda: made(endpoint="[::1"), "needs [ADDRESS]:PORT"),
    (lambda: made(join_timeout=0), "join_timeout=0: needs a number of seconds, more than 0"),
    (lambda: made(join_tiemout=5), "unknown rendezvous parameter join_tiemout: did you mean join"),
    (lambda: made(is_host="maybe"), "is_host='maybe': needs 1 or 0, true or false"),
]


def made(
    backend: str = "static",
    endpoint: str = "127.0.0.1:1",
    least: int = 2,
    rank: object = 0,
    **config: Any,
) -> object:
    if rank is not None:
        config["rank"] = rank
    return get_rendezvous_handler(
        RendezvousParameters(backend, endpoint, "job", least, 2, **config)
    )


@pytest.mark.parametrize(("wrong", "text"), BAD, ids=[text for _, text in BAD])
def test_bad_input_is_one_clear_error(wrong: Callable[[], object], text: str) -> None:
    with refused_in_one_line(ParameterError, text):
        wrong()


def test_a_static_handler_says_what_it_is() -> None:
    handler = made(rank=1, endpoint="::1")
    assert isinstance(handler, StaticRendezvousHandler)
    assert (handler.get_backend(), handler.get_run_id()) == ("static", "job")
    assert handler.shutdown()


@pytest.mark.parametrize("backend", ["static", "tcp", "c10d", "file"])
def test_timeout_is_the_join_timeout_in_the_words_of_torch(backend: str, tmp_path: Path) -> None:
    ranks: dict[str, Any] = {"rank": 0} if backend == "static" else {"rank": None}
    config = ranks | ({"insecure": True} if backend == "file" else {})
    where = str(tmp_path / "job") if backend == "file" else f"127.0.0.1:{free_port()}"
    for given, expected_s in (({"timeout": 60}, 60), ({"timeout": 60, "join_timeout": 7}, 7)):
        handler: Any = made(backend, where, **config | given)
        assert handler.settings.timeout.join.total_seconds() == expected_s
        assert handler.settings.shared().join_timeout_s == expected_s
        handler.shutdown()
    with pytest.raises(ParameterError, match="timeout='soon': needs a number"):
        made(backend, where, timeout="soon", **config)
