"""What a program finds in `rallypoint.elastic.rendezvous` and `rallypoint.testing`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as torch_dist

from rallypoint.elastic.rendezvous.api import RendezvousStoreInfo
from rallypoint.elastic.stores import HashStore
from rallypoint.errors import RendezvousStateError, StoreTimeoutError


def torch_store(port: int = 0) -> Any:
    """Without a port a server; each thread needs a client of its own."""
    make = torch_dist.TCPStore
    return make("127.0.0.1", port, is_master=not port, wait_for_workers=False)


@pytest.mark.parametrize("kind", ["ours", "torch's"])
@pytest.mark.parametrize("port", [None, 1234])
def test_rank_0_publishes_an_address_and_all_read_it(kind: str, port: int | None) -> None:
    server: Any = HashStore() if kind == "ours" else torch_store()
    stores = [server.clone() if kind == "ours" else torch_store(server.port) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        asked = [
            threads.submit(RendezvousStoreInfo.build, rank, store, f"10.0.0.{rank}", port)
            for rank, store in zip((2, 0), stores, strict=True)
        ]
        infos = [one.result(timeout=60) for one in asked]
    assert infos[0] == infos[1]
    assert infos[0].master_addr == "10.0.0.0"
    assert infos[0].master_port > 1023
    assert port in (None, infos[0].master_port)
    assert bytes(server.get("MASTER_PORT")) == str(infos[0].master_port).encode()


def test_torch_reads_the_address_that_we_publish() -> None:
    from torch.distributed.elastic.rendezvous import RendezvousStoreInfo as Theirs

    store = torch_store()
    ours = RendezvousStoreInfo.build(0, store, "10.0.0.7")
    theirs = Theirs.build(1, store, None)
    assert (theirs.master_addr, theirs.master_port) == (ours.master_addr, ours.master_port)


def test_an_address_that_is_none_and_one_that_does_not_come_are_errors() -> None:
    store = HashStore()
    store.set("MASTER_ADDR", "10.0.0.1")
    for port in ("many", "0", "65536"):
        store.set("MASTER_PORT", port)
        with pytest.raises(RendezvousStateError, match=f"MASTER_PORT=b'{port}' are not an address"):
            RendezvousStoreInfo.build(1, store, None)
    empty = HashStore(timeout=0.05)
    with pytest.raises(StoreTimeoutError, match="MASTER_ADDR"):
        RendezvousStoreInfo.build(1, empty, None)
