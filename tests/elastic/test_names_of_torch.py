"""Names of torch's launcher, called as the programs do that import them."""

from __future__ import annotations

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.harness.descriptors import open_descriptors
from tests.harness.limits import patience

from rallypoint.elastic.agent.server import WorkerSpec
from rallypoint.elastic.agent.server.api import DEFAULT_ROLE
from rallypoint.elastic.agent.server.local_elastic_agent import (
    TORCHELASTIC_ENABLE_FILE_TIMER,
    TORCHELASTIC_HEALTH_CHECK_PORT,
    TORCHELASTIC_TIMER_FILE,
    TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT,
)
from rallypoint.elastic.events import Event, EventSource, get_logging_handler
from rallypoint.elastic.metrics import get_elapsed_time_ms
from rallypoint.elastic.rendezvous.api import (
    RendezvousParameters,
    rendezvous_handler_registry,
)
from rallypoint.elastic.rendezvous.c10d_rendezvous_backend import DEFAULT_PORT
from rallypoint.elastic.rendezvous.registry import handler_registry
from rallypoint.elastic.rendezvous.static_tcp_rendezvous import (
    StaticTCPRendezvous,
    create_rdzv_handler,
)
from rallypoint.elastic.rendezvous.utils import parse_rendezvous_endpoint
from rallypoint.elastic.utils import macros
from rallypoint.elastic.utils.distributed import (
    create_c10d_store,
    get_free_port,
    get_socket_with_port,
)
from rallypoint.errors import ParameterError, StoreConnectionError, StoreTimeoutError
from rallypoint.worker import get_env_variable_or_raise

LIMIT_S = patience(30.0)


def test_a_program_agrees_on_a_free_port_and_meets_there() -> None:
    port = get_free_port()
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(create_c10d_store, True, "localhost", port, 2, LIMIT_S)
        address: dict[str, Any] = {"server_addr": "localhost", "server_port": port}
        client = create_c10d_store(is_server=False, **address, world_size=2, timeout=LIMIT_S)
    with closing(client), closing(server.result()) as made:
        made.set("key", "value")
        assert client.get("key") == b"value"


def test_a_server_alone_needs_no_port() -> None:
    with closing(create_c10d_store(True, "localhost", timeout=LIMIT_S)) as store:
        with closing(create_c10d_store(False, "localhost", store.port, timeout=LIMIT_S)) as client:
            client.set("key", "value")
        assert store.get("key") == b"value"
        assert store.timeout.total_seconds() == LIMIT_S
        with pytest.raises(StoreConnectionError):
            create_c10d_store(True, "localhost", store.port, retries=1, use_libuv=True)


def test_a_server_waits_for_all_unless_it_is_told_not_to() -> None:
    with pytest.raises(StoreTimeoutError):
        create_c10d_store(True, "localhost", get_free_port(), 2, timeout=0.05)
    port = get_free_port()
    create_c10d_store(True, "localhost", port, 2, LIMIT_S, wait_for_workers=False).close()


@pytest.mark.parametrize(("is_server", "size"), [(True, 2), (False, 1)])
def test_several_must_agree_on_a_port(is_server: bool, size: int) -> None:
    with pytest.raises(ValueError, match=r"server_port=-1: .* needs the port"):
        create_c10d_store(is_server, "localhost", world_size=size, timeout=0.05)


def test_a_socket_keeps_its_port_until_it_is_closed() -> None:
    with closing(get_socket_with_port()) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(StoreConnectionError):
            create_c10d_store(True, "localhost", port)
    create_c10d_store(True, "localhost", port, timeout=LIMIT_S).close()


def test_arguments_get_the_local_rank() -> None:
    args: tuple[Any, ...] = (1, f"--rank={macros.local_rank}", "$$")
    assert macros.substitute(list(args), str(3)) == ["1", "--rank=3", "$$"]


def test_a_variable_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    assert int(get_env_variable_or_raise("RANK")) == 3
    monkeypatch.setenv("RANK", "")
    assert get_env_variable_or_raise("RANK") == ""
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match="RANK is not set"):
        get_env_variable_or_raise("RANK")


def test_constants_name_what_torchs_name() -> None:
    assert TORCHELASTIC_ENABLE_FILE_TIMER == "TORCHELASTIC_ENABLE_FILE_TIMER"
    assert TORCHELASTIC_TIMER_FILE == "TORCHELASTIC_TIMER_FILE"
    assert TORCHELASTIC_HEALTH_CHECK_PORT == "TORCHELASTIC_HEALTH_CHECK_PORT"
    name = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
    assert name == TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT
    assert parse_rendezvous_endpoint("node-a", default_port=DEFAULT_PORT) == ("node-a", 29400)
    host, port = parse_rendezvous_endpoint("[::1]:1234", DEFAULT_PORT)
    assert (host, port) == ("::1", 1234)
    assert parse_rendezvous_endpoint("", 1234) == ("localhost", 1234)


def test_milliseconds_since_a_time() -> None:
    assert 2000 <= get_elapsed_time_ms(time.time() - 2) < 2000 + LIMIT_S * 1000


def test_events_go_to_a_logger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = Event("started", EventSource.AGENT, metadata={"rank": 1})
    file, before = tmp_path / "events", open_descriptors()
    for destination in ("console", "null", f"jsonl:{file}"):
        logger = logging.getLogger(f"tests.events.{destination}")
        logger.setLevel(logging.INFO)
        handler = get_logging_handler(destination)
        logger.addHandler(handler)
        logger.info(event.serialize())
        logger.removeHandler(handler)
        handler.close()
    assert open_descriptors() - before == set()
    assert json.loads(capsys.readouterr().err)["name"] == "started"
    assert Event.deserialize(file.read_text().strip()) == event
    with pytest.raises(ParameterError, match="there is no such handler"):
        get_logging_handler("nowhere")


def test_fixed_ranks_meet_with_torchs_parameters() -> None:
    port = get_free_port()
    found: dict[int, tuple[int, int, bytes]] = {}

    def take_part(handler: Any, rank: int) -> None:
        info = handler.next_rendezvous()
        info.store.set(f"from {info.rank}", str(rank))
        other = info.store.get(f"from {1 - info.rank}")
        found[rank] = (info.rank, info.world_size, other)

    params: dict[str, Any] = {"rank": 1, "timeout": LIMIT_S, "insecure": True}
    endpoint = f"localhost:{port}"
    handlers = [
        StaticTCPRendezvous("localhost", port, 0, 2, "job", LIMIT_S, insecure=True),
        create_rdzv_handler(RendezvousParameters("static", endpoint, "job", 2, 2, **params)),
    ]
    assert [handler.get_backend() for handler in handlers] == ["static"] * 2
    assert handlers[0].get_run_id() == "job"
    assert handlers[0].settings.timeout.join.total_seconds() == LIMIT_S
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(take_part, handlers, range(2)))
        assert found == {0: (0, 2, b"1"), 1: (1, 2, b"0")}
        list(pool.map(lambda handler: handler.shutdown(), handlers))


def test_a_handler_of_fixed_ranks_refuses_what_is_no_rank() -> None:
    with pytest.raises(ParameterError, match=r"rank=2: needs 0\.\.1"):
        StaticTCPRendezvous("localhost", 29500, 2, 2, "job", 60)


def test_a_package_registers_its_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler_registry, "_creators", {})
    handler_registry.register("mine", create_rdzv_handler)
    params = RendezvousParameters("mine", "localhost:29500", "job", 1, 1, rank=0)
    handler = rendezvous_handler_registry.create_handler(params)
    spec = WorkerSpec(DEFAULT_ROLE, 1, handler, entrypoint="true")
    assert (spec.role, handler.get_backend()) == ("default", "mine")
