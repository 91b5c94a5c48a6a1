"""Calls at the edges of what torch's launcher takes: what each returns, or which error it raises.

Each is an expression over the modules of `MODULES`, evaluated with torch's and with ours.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MODULES = {
    "agent": "elastic.agent.server",
    "errors": "elastic.multiprocessing.errors",
    "events": "elastic.events",
    "launch": "launch",
    "local": "elastic.agent.server.local_elastic_agent",
    "launcher": "launcher",
    "metrics": "elastic.metrics",
    "mp": "elastic.multiprocessing",
    "rdzv": "elastic.rendezvous",
    "dynamic": "elastic.rendezvous.dynamic_rendezvous",
    "registry": "elastic.rendezvous.registry",
    "run": "run",
    "stores": "",
    "timer": "elastic.timer",
    "utils": "elastic.rendezvous.utils",
}
_CONFIG = "launcher.LaunchConfig(1, 1, 1"
_HANDLER = "dynamic.DynamicRendezvousHandler.from_backend"
_SPEC = 'agent.WorkerSpec("trainer", 1, rdzv_handler=None, entrypoint="true"'
_AGENT = (
    f'local.LocalElasticAgent(agent.WorkerSpec("t", 1, {_HANDLER}("a", stores.HashStore(), '
    'backend(), 1, 2), entrypoint="true"), None)'
)
_TCP = 'stores.TCPStore("localhost", 0, is_master=True, wait_for_workers=False'
CALLS = (
    # Launches
    f"{_CONFIG}, shutdown_timeout=-5).shutdown_timeout",
    f"{_CONFIG}, shutdown_timeout=0).shutdown_timeout",
    f"{_CONFIG}, shutdown_timeout=2.5).shutdown_timeout",
    f"{_CONFIG}, rdzv_timeout=7).rdzv_configs",
    f"{_CONFIG}).rdzv_configs",
    f"{_CONFIG}).rdzv_timeout",
    f"{_CONFIG}).run_id",
    "launcher.LaunchConfig(2, 1, 1).min_nodes",
    "launcher.LaunchConfig(1, 1, 0).nproc_per_node",
    # The command line
    'run.parse_min_max_nnodes("2")',
    'run.parse_min_max_nnodes("1:4")',
    'run.parse_min_max_nnodes("1:2:3")',
    'run.parse_min_max_nnodes("two")',
    'run.parse_min_max_nnodes("")',
    'run.parse_min_max_nnodes("2:1")',
    'run.determine_local_world_size("3")',
    'run.determine_local_world_size("many")',
    'run.determine_local_world_size("")',
    "run.parse_args([])",
    'run.parse_args(["--no-such-option", "a.py"])',
    'run.parse_args(["--nnodes", "2:1", "a.py"]).nnodes',
    'run.parse_args(["--nnodes", "1:2:3", "a.py"]).nnodes',
    'run.parse_args(["--nproc-per-node", "many", "a.py"]).nproc_per_node',
    'run.parse_args(["--max-restarts", "many", "a.py"])',
    'run.parse_args(["--rdzv-conf", "a", "a.py"]).rdzv_conf',
    'run.config_from_args(run.parse_args(["a.py"]))[2][-1:]',
    'run.config_from_args(run.parse_args(["--no-python", "no-such-program"]))[1:]',
    'run.config_from_args(run.parse_args(["--nnodes", "2:1", "a.py"]))',
    'run.config_from_args(run.parse_args(["--nnodes", "1:2:3", "a.py"]))',
    'run.config_from_args(run.parse_args(["--nproc-per-node", "many", "a.py"]))',
    'run.config_from_args(run.parse_args(["--max-restarts", "-1", "a.py"]))',
    'run.config_from_args(run.parse_args(["--no-python", "-m", "a"]))',
    'run.config_from_args(run.parse_args(["--no-python", "--run-path", "a.py"]))',
    'run.config_from_args(run.parse_args(["--rdzv-conf", "a", "a.py"]))',
    'run.config_from_args(run.parse_args(["--local-ranks-filter", "x", "a.py"]))',
    'run.config_from_args(run.parse_args(["--redirects", "9", "a.py"]))',
    'run.main(["--nnodes", "1:2:3", "a.py"])',
    'run.main(["--nnodes", "2:1", "a.py"])',
    'run.main(["--nproc-per-node", "many", "a.py"])',
    "run.main([])",
    # Agents
    f"{_SPEC}).monitor_interval",
    'agent.WorkerSpec("trainer", 0, rdzv_handler=None, entrypoint="true")',
    f"{_SPEC}, monitor_interval=0)",
    f"{_SPEC}, max_restarts=-1).max_restarts",
    'agent.WorkerSpec("", 1, rdzv_handler=None, entrypoint="true").role',
    'agent.WorkerSpec("trainer", 1, rdzv_handler=None)',
    f"{_SPEC}).get_entrypoint_name()",
    "str(agent.Worker(1, 2, 3, 4, 5))",
    "repr(agent.Worker(1))",
    'setattr(agent.Worker(1), "more", 1)',
    "agent.Worker.__slots__",
    f"sorted({{*{_AGENT}.get_event_succeeded().metadata}} - {{'id'}})",
    f"{_AGENT}.get_event_succeeded().metadata['total_run_time']",
    f"agent.WorkerGroup.__slots__ and agent.WorkerGroup({_SPEC})).state",
    f'setattr(agent.WorkerGroup({_SPEC})), "more", 1)',
    "str(agent.RunResult(agent.WorkerState.FAILED))",
    "str(agent.WorkerState.FAILED)",
    'f"{agent.WorkerState.HEALTHY}"',
    "repr(agent.WorkerState.FAILED)",
    'agent.WorkerState.FAILED == "FAILED"',
    'agent.WorkerState("failed")',
    # Failures
    "type(errors.ProcessFailure(0, 1, 1, '/no/such/file').timestamp).__name__",
    "errors.ProcessFailure(0, 1, -9, '/no/such/file').message",
    "errors.ProcessFailure(0, 1, -9, '/no/such/file').signal_name()",
    "errors.ProcessFailure(0, 1, 1, '/no/such/file').error_file",
    "errors.ProcessFailure(0, 1, 1, '/no/such/file').signal_name()",
    "errors.ProcessFailure(0, 1, -999, '/no/such/file').signal_name()",
    'errors.ChildFailedError("a", {})',
    'errors.ChildFailedError("a", {0: errors.ProcessFailure(0, 1, 1, "/no")}).name',
    # Processes
    'mp.Std.from_str("1")',
    'mp.Std.from_str("0:1,1:2")',
    'mp.Std.from_str("9")',
    'mp.Std.from_str("x")',
    'mp.Std.from_str("")',
    "mp.to_map(mp.Std.OUT, 2)",
    "mp.to_map({0: mp.Std.ERR}, 2)",
    "mp.to_map({7: mp.Std.ERR}, 2)",
    'mp.start_processes("a", "no-such-program", {0: ()}, {0: {}}, mp.DefaultLogsSpecs())',
    'mp.start_processes("a", "true", {0: ()}, {}, mp.DefaultLogsSpecs())',
    'mp.start_processes("a", "true", {}, {}, mp.DefaultLogsSpecs())',
    'mp.start_processes("a", "true", {1: ()}, {1: {}}, mp.DefaultLogsSpecs())',
    'mp.start_processes("a", print, {0: ()}, {0: {}}, mp.DefaultLogsSpecs(), start_method="x")',
    'mp.SignalException("a", 15).sigval',
    # Rendezvous
    'rdzv.RendezvousParameters("", "", "", 1, 1)',
    'rdzv.RendezvousParameters("a", "", "", 0, 1)',
    'rdzv.RendezvousParameters("a", "", "", 2, 1)',
    'rdzv.RendezvousParameters("a", "", "", 1, 1, x="1").get_as_bool("x")',
    'rdzv.RendezvousParameters("a", "", "", 1, 1, x="maybe").get_as_bool("x")',
    'rdzv.RendezvousParameters("a", "", "", 1, 1, x=2).get_as_bool("x")',
    'rdzv.RendezvousParameters("a", "", "", 1, 1, x="1").get_as_int("x")',
    'rdzv.RendezvousParameters("a", "", "", 1, 1, x="1.5").get_as_int("x")',
    'rdzv.RendezvousParameters("a", "", "", 1, 1).get("x", 3)',
    'rdzv.RendezvousHandlerRegistry().create_handler(rdzv.RendezvousParameters("a", "", "", 1, 1))',
    'rdzv.RendezvousHandlerRegistry().register("", print)',
    'registry.get_rendezvous_handler(rdzv.RendezvousParameters("nosuch", "", "", 1, 1))',
    "dynamic.RendezvousTimeout(join=timedelta(seconds=0))",
    "dynamic.RendezvousTimeout(last_call=timedelta(seconds=-1))",
    "dynamic.RendezvousTimeout().join",
    "dynamic.RendezvousTimeout().last_call",
    "dynamic.RendezvousTimeout().close",
    "dynamic.RendezvousTimeout().heartbeat",
    f'{_HANDLER}("", stores.HashStore(), backend(), 1, 2)',
    f'{_HANDLER}("a", stores.HashStore(), backend(), 0, 2)',
    f'{_HANDLER}("a", stores.HashStore(), backend(), 2, 1)',
    'utils.parse_rendezvous_endpoint("", 5)',
    'utils.parse_rendezvous_endpoint("a", 5)',
    'utils.parse_rendezvous_endpoint("a:6", 5)',
    'utils.parse_rendezvous_endpoint("a:b", 5)',
    'utils.parse_rendezvous_endpoint("a:70000", 5)',
    'utils.parse_rendezvous_endpoint("[::1]:6", 5)',
    # Events, metrics, timers
    'events.Event("a", events.EventSource.AGENT).timestamp == 0',
    'events.Event.deserialize("x")',
    "str(events.EventSource.AGENT)",
    "str(events.NodeState.INIT)",
    'events.get_logging_handler("nosuch")',
    'events.record(events.Event("a", events.EventSource.AGENT), "nosuch")',
    'events.record(events.Event("a", events.EventSource.AGENT))',
    "metrics.MetricsConfig().params",
    'metrics.getStream("a").group_name',
    'timer.TimerRequest(1, "a", 2.0) == timer.TimerRequest(1, "a", 2.0)',
    'timer.TimerRequest(1, "a", 2.0) == 1',
    # Stores
    f"{_TCP}).port > 0",
    f"{_TCP}).host",
    f"{_TCP}).libuvBackend",
    f"{_TCP}, use_libuv=False).libuvBackend",
    f"{_TCP}, multi_tenant=True).libuvBackend",
    f"{_TCP}, world_size=0).port > 0",
    f"{_TCP}, world_size=-1).port > 0",
    f"{_TCP}, world_size=-2).port > 0",
    f"{_TCP}, timeout=timedelta(0)).port > 0",
    f"{_TCP}, timeout=timedelta(seconds=-1)).port > 0",
    f"{_TCP}, timeout=5).port > 0",
    f"{_TCP}, timeout=timedelta(seconds=7)).timeout",
    'stores.TCPStore("localhost", 0, 0, True).port > 0',
    'stores.TCPStore("localhost", 0, 1, True).num_keys()',
    'stores.TCPStore("localhost", 0, None, True).num_keys()',
    'stores.TCPStore("localhost", 0, 2, True, timedelta(milliseconds=10))',
    'stores.TCPStore("localhost", 0, 1, False, timedelta(milliseconds=10))',
    'stores.TCPStore("localhost", 1, 1, False, timedelta(milliseconds=10))',
    'stores.TCPStore("localhost", -1, 1, True)',
    'stores.TCPStore("localhost", 70000, 1, True)',
    'stores.TCPStore("localhost", "29500", 1, True)',
    'stores.TCPStore(host_name="localhost", port=0, world_size=1, is_master=True).port > 0',
    'stores.TCPStore(host="localhost", port=0, world_size=1, is_master=True).port > 0',
    'stores.TCPStore("localhost", 0, 1, True, master_listen_fd=listening()).port > 0',
    'stores.TCPStore("localhost", 5, 1, True, master_listen_fd=listening())',
    'stores.TCPStore("localhost", 0, 1, True, master_listen_fd=-1)',
    'stores.TCPStore("localhost", 0, 1, True, master_listen_fd=0)',
    'stores.TCPStore("localhost", listened(), 1, True, use_libuv=False, multi_tenant=False)',
    'stores.HashStore().set("a", b"x\\xff")',
    'stores.HashStore().set(1, "a")',
    'stores.HashStore().set("a", 1)',
    'stores.HashStore().check("ab")',
    "stores.HashStore().timeout",
    "stores.HashStore().num_keys()",
    'stores.HashStore().queue_pop("a", block=False)',
    'stores.HashStore().wait(["a"], timedelta(milliseconds=1))',
    'stores.HashStore().multi_set(["a"], ["b", "c"])',
    "stores.HashStore().has_extended_api()",
    'stores.HashStore().compare_set("a", "b", "c")',
    'stores.HashStore().compare_set("a", "", "c")',
    'stores.HashStore().delete_key("a")',
    "stores.HashStore().list_keys()",
    'stores.PrefixStore("a", stores.HashStore()).underlying_store.num_keys()',
    'stores.PrefixStore("a", None)',
    "stores.PrefixStore(1, stores.HashStore())",
    'stores.FileStore("a").path',
    'stores.Store().set("a", "b")',
    'stores.Store().get("a")',
    "stores.Store().timeout",
)

_GENERAL = ("Exception", "BaseException", "object")


class _Backend:
    """A backend without a state."""

    name = "backend"

    def get_state(self) -> None:
        return None

    def set_state(self, state: bytes, token: object = None) -> None:
        return None


def outcomes(
    find: Callable[[str], Any], like: Mapping[str, object] | None = None
) -> dict[str, object]:
    """By call: what it returns, or `raises` and Python's own type of its error. `find` gives the
    module of a path below `torch.distributed`. An error that is also of the type that `like` says
    has that type."""
    names = {name: find(path) for name, path in MODULES.items()}
    with _scene() as helpers:
        wanted = like or {}
        return {call: _outcome(call, names | helpers, wanted.get(call)) for call in CALLS}


@contextmanager
def _scene() -> Iterator[dict[str, object]]:
    """What calls use besides the modules, in a folder that has the script `a.py`."""
    kept: list[socket.socket] = []

    def listening() -> int:
        kept.append(socket.create_server(("127.0.0.1", 0)))
        return os.dup(kept[-1].fileno())

    def listened() -> int:
        kept.append(socket.create_server(("127.0.0.1", 0)))
        return int(kept[-1].getsockname()[1])

    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("a.py").touch()
        yield {
            "timedelta": timedelta,
            "backend": _Backend,
            "listening": listening,
            "listened": listened,
        }
    for each in kept:
        each.close()


def _outcome(call: str, names: dict[str, Any], wanted: object) -> object:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            return _shown(eval(call, dict(names)))
        except BaseException as error:
            kinds = [k.__name__ for k in type(error).__mro__ if k.__module__ == "builtins"]
            raised = [f"raises {name}" for name in kinds if name not in _GENERAL]
            return wanted if wanted in raised else (raised or ["raises Exception"])[0]


def _shown(value: object) -> object:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _shown(each) for key, each in value.items()}
    if isinstance(value, bool | int | float | str | None):
        return value
    return repr(value) if isinstance(value, bytes | timedelta) else type(value).__name__
