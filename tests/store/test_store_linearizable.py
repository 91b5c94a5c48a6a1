"""Concurrent clients of one store, torch's and ours, see one order of what happened to each key."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
import torch.distributed as dist
from tests.harness.limits import patience
from tests.harness.linearizability import Call, is_linearizable
from tests.harness.store_process import store_process

from rallypoint.elastic.stores.tcp_store import TCPStore

KEYS = ("a", "b", "c")
CALLS = 80
LIMIT_S = patience(60.0)


def torch_client(port: int) -> Any:
    return dist.TCPStore("127.0.0.1", port, None, False, timeout=timedelta(seconds=LIMIT_S))


def our_client(port: int) -> Any:
    return TCPStore("127.0.0.1", port, timeout=LIMIT_S)


def record(
    client: Any, seed: int, moments: count[int], start: threading.Barrier, found: Any
) -> None:
    """Random operations; values are numbers, and few, so that comparisons often succeed."""
    rng = random.Random(seed)
    start.wait(LIMIT_S)
    for _ in range(CALLS):
        key, name = rng.choice(KEYS), rng.choice(("set", "get", "add", "compare_set"))
        some = [b"%d" % rng.randrange(4) for _ in range(2)]
        arguments: dict[str, list[Any]] = {
            "set": some[:1],
            "get": [],
            "add": [rng.choice((-1, 1))],
            "compare_set": some,
        }
        called = next(moments)
        result = getattr(client, name)(key, *arguments[name])
        if name == "set":
            client.num_keys()  # it has no answer of its own, and returns before it has happened
        found.append((key, Call(called, next(moments), name, tuple(arguments[name]), result)))


@pytest.mark.parametrize(
    "clients",
    [[torch_client] * 6, [our_client] * 6, [torch_client] * 3 + [our_client] * 3],
    ids=["torch", "ours", "both"],
)
def test_what_concurrent_clients_see_of_a_key_has_one_order(
    clients: list[Callable[[int], Any]],
) -> None:
    with store_process() as running:
        first = our_client(running.port)
        for key in KEYS:
            first.set(key, b"0")
        opened = [connect(running.port) for connect in clients]
        moments, start = count(), threading.Barrier(len(opened))
        found: list[tuple[str, Call]] = []
        with ThreadPoolExecutor(len(opened)) as pool:
            for seed, client in enumerate(opened):
                pool.submit(record, client, seed, moments, start, found)
        first.close()
    assert len(found) == len(clients) * CALLS
    for key in KEYS:
        assert is_linearizable([call for where, call in found if where == key], b"0"), key


def test_the_checker_knows_what_could_not_have_happened() -> None:
    stale = [Call(0, 1, "set", (b"1",), None), Call(2, 3, "get", (), b"0")]
    assert not is_linearizable(stale, b"0")
    lost = [Call(0, 2, "add", (1,), 1), Call(1, 3, "add", (1,), 1)]
    assert not is_linearizable(lost, b"0")
    both_won = [
        Call(0, 2, "compare_set", (b"0", b"1"), b"1"),
        Call(1, 3, "compare_set", (b"0", b"2"), b"2"),
    ]
    assert not is_linearizable(both_won, b"0")
    back = [
        Call(0, 9, "set", (b"1",), None),
        Call(1, 2, "get", (), b"1"),
        Call(3, 4, "get", (), b"0"),
    ]
    assert not is_linearizable(back, b"0")


def test_the_checker_accepts_any_order_of_what_overlaps() -> None:
    overlapping = [Call(0, 9, "set", (b"1",), None), Call(1, 2, "get", (), b"0")]
    assert is_linearizable(overlapping, b"0")
    assert is_linearizable([*overlapping, Call(3, 4, "get", (), b"1")], b"0")
    assert is_linearizable([Call(0, 2, "add", (1,), 2), Call(1, 3, "add", (1,), 1)], b"0")
