"""Who calls the library is told about parameters, never about flags of the command line."""

from __future__ import annotations

import ast
import inspect
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rallypoint
from rallypoint.agent.embedding import start_in_thread
from rallypoint.core import event_kinds as kinds
from rallypoint.core.settings import FLAGS, parameters
from rallypoint.core.text import named, naming_parameters, spelled
from rallypoint.elastic.agent.embedded.parameters import OF_A_HANDLER, OF_A_LAUNCH, OF_A_SPEC
from rallypoint.elastic.agent.server import LocalElasticAgent, WorkerSpec
from rallypoint.elastic.launcher import LaunchConfig, elastic_launch
from rallypoint.elastic.launcher.api import agent_config
from rallypoint.elastic.multiprocessing import (
    DefaultLogsSpecs,
    Std,
    start_processes,
)
from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)
from rallypoint.elastic.rendezvous.registry import get_rendezvous_handler
from rallypoint.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from rallypoint.elastic.stores import HashStore, TCPStore
from rallypoint.errors import RallypointError, StoreConnectionError, UsageError
from rallypoint.register.contract import MemoryRendezvousBackend

PACKAGE = Path(rallypoint.__file__).parent
OF_COMMANDS = ("cli", "integrations", "testing")
"""Whose messages are for who runs a command, or a tool of this project."""
OF_A_COMMAND = {
    "agent/membership.py",  # the command that looks at the job
    "agent/preempt_notice.py",
    "agent/run.py",
    "agent/telemetry/metrics_server.py",
    "coordinator/hosting.py",
    "coordinator/leading/leaderships.py",
    "core/watch/advice.py",
    "core/watch/history_file.py",
    "process/prepared/program.py",
    "store/access.py",
    "store/keyvalue.py",
    "store/server.py",
}
"""Modules with messages about options that no call takes, or for who gives a command."""
ROWS = (
    "core/settings.py",
    "torch_versions.py",
    "core/outcomes.py",
    "core/text.py",
    "elastic/rendezvous/etcd_server.py",
    "elastic/launch.py",
    "elastic/launcher/api.py",
    "elastic/agent/embedded/parameters.py",
    "elastic/run.py",
)
"""Tables of flags, and the command line of another program, which are no messages."""
A_FLAG = re.compile(r"(?<![\w/.='\"-])--[a-z]")

BAD: tuple[Any, ...] = (None, "", "x", "--lease", -1, 0, 0.5, 2**40, float("nan"), (), [""], {})
"""What a mistaken program may give for anything."""


Call = tuple[str, Callable[[], object]]
"""A mistake, and what makes it."""


@pytest.fixture(autouse=True)
def an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a value is taken for the name of a file, that file is made."""
    monkeypatch.chdir(tmp_path)


def names_a_flag(text: str) -> bool:
    return A_FLAG.search(re.sub(r"`[^`]*`", "", text)) is not None


def texts_of(tree: ast.AST) -> Iterator[str]:
    """The texts of a module, with X for what is filled in, without docstrings."""
    inner: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr():
                inner.add(id(node.value))
            case ast.JoinedStr():
                inner |= {id(part) for part in node.values}
                parts = (getattr(part, "value", "") for part in node.values)
                yield "".join(part if isinstance(part, str) else "X" for part in parts)
            case ast.Constant(value=str(text)) if id(node) not in inner:
                yield text


def messages() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name.split("/")[0] in OF_COMMANDS or name in ROWS:
            continue
        yield from ((name, text) for text in texts_of(ast.parse(path.read_text())))


def test_no_message_of_the_package_names_a_flag_to_who_calls_the_library() -> None:
    found = {(name, text) for name, text in messages() if names_a_flag(text)}
    assert {name for name, _ in found} == OF_A_COMMAND


def test_each_setting_that_a_message_names_is_in_the_table() -> None:
    used = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if re.search(r"text import [^\n]*\bnamed\b", text):
            used |= set(re.findall(r"\bnamed\.([a-z_]+)", text))
    assert len(used) > 30, "the messages were found"
    assert {name for name in used if f"--{name.replace('_', '-')}" not in FLAGS} == set()


@pytest.mark.parametrize("own", [OF_A_LAUNCH, OF_A_SPEC, OF_A_HANDLER])
@pytest.mark.parametrize("flag", FLAGS)
def test_a_name_is_that_of_a_parameter_or_of_the_command(flag: str, own: dict[str, str]) -> None:
    taken = {field.name for kind in (LaunchConfig, WorkerSpec) for field in fields(kind)}
    for call in (DefaultLogsSpecs, RendezvousParameters, StaticTCPRendezvous):
        taken |= set(inspect.signature(call).parameters)
    taken |= set(parameters())
    with naming_parameters(own):
        name = spelled(flag)
    assert spelled(flag) == flag, "as a command says it"
    if name == f"`rallypoint run {flag}`":
        assert FLAGS[flag].name not in taken
    elif name != "rendezvous parameter":
        assert {word.removesuffix("=True") for word in name.split(" and ")} <= taken


def launch_settings(given: dict[str, Any]) -> object:
    return agent_config(LaunchConfig(**given), "true", ())


def make_handler(given: dict[str, Any]) -> object:
    return get_rendezvous_handler(RendezvousParameters(**given))


def make_dynamic(number: Any) -> object:
    backend = MemoryRendezvousBackend()
    return DynamicRendezvousHandler.from_backend(
        "job", HashStore(), backend, number, number, keep_alive_interval=number
    )


def make_agent(given: dict[str, Any]) -> object:
    return LocalElasticAgent(WorkerSpec(**given))


def raised_by(call: Callable[[], object]) -> RallypointError | None:
    """What it raises on purpose; arguments of no sensible type may raise what Python does."""
    try:
        call()
    except RallypointError as error:
        return error
    except (TypeError, ValueError, AttributeError):
        return None
    return None


def check(calls: list[Call], *, least: int) -> None:
    """None of them names a flag, and so many are refused at the least."""
    refused = [(what, error) for what, call in calls if (error := raised_by(call)) is not None]
    said = [(what, str(error).replace(BAD[3], "what was given")) for what, error in refused]
    assert [each for each in said if names_a_flag(each[1])] == []
    assert len(refused) >= least


def test_no_value_of_a_launch_config_is_answered_with_a_flag() -> None:
    usual = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1}
    several = usual | {"max_nodes": 2, "rdzv_endpoint": "127.0.0.1:1"}
    calls: list[Call] = []
    for base in (usual, several, several | {"rdzv_backend": "static"}):
        for bad in BAD:
            mistakes = [{field.name: bad} for field in fields(LaunchConfig)]
            keys = (*parameters(), "rank", "unknown")
            mistakes += [{"rdzv_configs": {name: bad}} for name in keys]
            calls += [(str(one), partial(launch_settings, base | one)) for one in mistakes]
    check(calls, least=300)


def test_no_parameter_of_a_handler_is_answered_with_a_flag() -> None:
    calls: list[Call] = []
    usual = {"backend": "tcp", "endpoint": "127.0.0.1:1", "run_id": "job"}
    usual |= {"min_nodes": 1, "max_nodes": 2}  # type: ignore[dict-item]
    names = {*inspect.signature(RendezvousParameters).parameters, *parameters(), "rank", "unknown"}
    for base in (usual, usual | {"backend": "static", "min_nodes": 2, "rank": 0}):
        for bad in BAD:
            mistakes = [{name: bad} for name in sorted(names - {"config"})]
            calls += [(str(one), partial(make_handler, base | one)) for one in mistakes]
    for bad in BAD:
        calls.append((f"from_backend {bad!r}", partial(make_dynamic, bad)))
        calls.append((f"timeout {bad!r}", partial(RendezvousTimeout, bad)))
    check(calls, least=150)


def test_no_value_of_a_spec_or_an_agent_is_answered_with_a_flag() -> None:
    usual = {"role": "r", "local_world_size": 1, "entrypoint": ("true",)}
    spec = WorkerSpec("r", 1, entrypoint=("true",))
    calls: list[Call] = []
    for bad in BAD:
        names = (field.name for field in fields(WorkerSpec) if field.name != "fn")
        mistakes = [{name: bad} for name in names]
        calls += [(str(one), partial(make_agent, usual | one)) for one in mistakes]
        names_of_agent = inspect.signature(LocalElasticAgent).parameters.keys() - {"spec"}
        mistakes = [{name: bad} for name in sorted(names_of_agent)]
        calls += [(str(one), partial(LocalElasticAgent, spec, **one)) for one in mistakes]
    check(calls, least=40)


def test_settings_that_only_the_machine_refuses_are_named_by_their_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (tmp_path / "file").touch()
    there = str(tmp_path / "file" / "logs")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for config, says in (
            (LaunchConfig(1, 1, 1, logs_specs=DefaultLogsSpecs(there)), "another log_dir"),
            (
                LaunchConfig(1, 1, 2, virtual_local_rank=True, max_restarts=0),
                "virtual_local_rank=True: CUDA_VISIBLE_DEVICES=0 names",
            ),
            (LaunchConfig(1, 1, 1, signals_to_handle="NO"), "signals_to_handle='NO': NO is"),
            (LaunchConfig(1, 1, 1, role=""), "role '': needs 1 to 255"),
            (LaunchConfig(1, 1, 1, preload=["json"]), "preload json: true is not a Python"),
        ):
            config.event_log_handler = "jsonl:events"
            with pytest.raises(RallypointError) as raised:
                elastic_launch(config, "true")()
            assert says in str(raised.value)
            assert not names_a_flag(str(raised.value))
        events = Path("events").read_text()
        assert "virtual_local_rank=True: " in events
        assert not names_a_flag(events)
        spec = WorkerSpec("r", 1, entrypoint=("true",), master_addr="127.0.0.1", master_port=port)
        with pytest.raises(UsageError, match=f"^master_port {port}: .*choose another"):
            LocalElasticAgent(spec).run()
    with pytest.raises(UsageError, match=r"choose another log_dir$"):
        DefaultLogsSpecs(there).reify({0: {}})
    with pytest.raises(UsageError, match=r"choose another log_dir$"):
        start_processes("p", "true", {0: ()}, {0: {}}, DefaultLogsSpecs(there, Std.ALL))


def test_a_thread_of_a_call_names_its_parameters() -> None:
    def say() -> str:
        return f"{named.node_rank}, {named.nproc_per_node}, {named.quiet}"

    with naming_parameters(OF_A_SPEC):
        wait, take = start_in_thread(say)
        wait()
    assert take() == "rank, local_world_size, `rallypoint run --quiet`"
    assert say() == "--node-rank, --nproc-per-node, --quiet"


def test_an_event_of_a_program_names_parameters() -> None:
    kind = kinds.HISTORY_NOT_WRITTEN
    assert kind(path="/h", why="No").text.startswith("--history /h: can't be written: No")
    with naming_parameters(OF_A_LAUNCH):
        assert kind(path="/h", why="No").text.startswith("history /h: can't be written: No")


def test_a_store_of_a_program_says_which_parameter_lets_others_in(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(StoreConnectionError),
    ):
        TCPStore("127.0.0.1", 0, None, True, timeout=1, listen_socket=listener)
    said = capfd.readouterr().err
    assert "allow 127.0.0.0/8 lets all users of this machine in, allow=['0.0.0.0/0', " in said
    assert not names_a_flag(said)
