"""Programs that name the parameters of torch's `TCPStore`, or give them by place."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import pytest
from tests.harness.limits import patience

from rallypoint.elastic.stores.tcp_store import TCPStore
from rallypoint.errors import StoreConnectionError

HOST = "127.0.0.1"
LIMIT = timedelta(seconds=patience(60.0))


def test_a_program_that_names_all_parameters_of_torch_has_a_store() -> None:
    listener = socket.create_server((HOST, 0))
    with TCPStore(
        host_name=HOST,
        port=0,
        world_size=1,
        is_master=True,
        timeout=LIMIT,
        wait_for_workers=True,
        multi_tenant=False,
        master_listen_fd=os.dup(listener.fileno()),
        use_libuv=False,
    ) as store:
        assert (store.host, store.port) == listener.getsockname()
        assert not store.libuvBackend
        listener.close()
        with TCPStore(HOST, store.port, 1, False, LIMIT, True, False, None, True) as client:
            client.set("k", "v")
            assert client.libuvBackend
            with client.clone() as clone:
                assert clone.libuvBackend
        assert store.get("k") == b"v"


def test_masters_with_multi_tenant_share_the_server_of_their_port_until_all_are_closed() -> None:
    first = TCPStore(HOST, 0, None, True, LIMIT, multi_tenant=True)
    with TCPStore(HOST, first.port, None, True, LIMIT, multi_tenant=True) as second:
        first.set("k", "v")
        first.close()
        assert second.get("k") == b"v"
        with pytest.raises(StoreConnectionError, match="Address already in use"):
            TCPStore(HOST, second.port, None, True, LIMIT)
    with TCPStore(HOST, second.port, None, True, LIMIT, multi_tenant=True) as anew:
        assert anew.num_keys() == 0


@pytest.mark.parametrize("is_master", [True, False])
def test_a_world_of_no_workers_is_refused(is_master: bool) -> None:
    with pytest.raises(ValueError, match="world_size=0: needs the number of workers, or None"):
        TCPStore(HOST, 0, 0, is_master)


def test_a_descriptor_of_another_port_or_of_no_socket_is_refused_in_one_line() -> None:
    with socket.create_server((HOST, 0)) as listener:
        bound = listener.getsockname()[1]
        is_bound = f"master_listen_fd={listener.fileno()}: is bound to the port {bound}, but"
        with pytest.raises(StoreConnectionError, match=f"{is_bound} the port is 5"):
            TCPStore(HOST, 5, 1, True, master_listen_fd=listener.fileno())
        assert listener.getsockname()[1] == bound  # It is still the program's.
    with open(os.devnull) as file:
        needs = rf"master_listen_fd={file.fileno()}: needs the descriptor of a bound socket"
        with pytest.raises(StoreConnectionError, match=needs):
            TCPStore(HOST, 0, 1, True, master_listen_fd=file.fileno())
