"""How a message names a setting: by the flag of a command, or, within a call of the library, by the
parameter of that call.

    with naming_parameters(OF_A_HANDLER):
        f"{named.rdzv_endpoint} {where}: ..."        # "endpoint node-a: ...", in place of a flag

An option that no call takes is named as that of the command, in backticks. A thread begins without
a call: `carried` hands it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TypeVar

from rallypoint.core.settings import BY_FIELD, ENGINE_NAMES, FLAGS, FOR_DIRECTORIES, Differences
from rallypoint.errors import SettingsConflictError

T = TypeVar("T")
ParameterNames = Mapping[str, str]
"""Parameters by the flags that say the same."""

OF_A_LAUNCH: ParameterNames = {"--master-port": "rdzv_endpoint"}
OF_A_SPEC: ParameterNames = {"--nproc-per-node": "local_world_size", "--store-port": "master_port"}
OF_A_HANDLER: ParameterNames = {"--rdzv-endpoint": "endpoint", "--rdzv-backend": "backend"}
OF_A_STORE: ParameterNames = {"--allow": "allow", "--insecure": "allow=['0.0.0.0/0', '::/0']"}

_OTHERWISE: ParameterNames = {
    "--nnodes": "min_nodes and max_nodes",
    "--node-rank": "rank",
    "--numa-binding": "numa_options",
    "--rdzv-conf": "rendezvous parameter",
    "--rdzv-id": "run_id",
}
"""Those whose parameter has another name."""
_names: ContextVar[ParameterNames | None] = ContextVar("names", default=None)


def spelled(flag: str) -> str:
    """Return the name of a setting, for a message that is made now."""
    names = _names.get()
    if names is None:
        return flag
    if flag.startswith("--rdzv-conf "):
        return f"the rendezvous parameter {flag.removeprefix('--rdzv-conf ')}"
    if name := names.get(flag) or _OTHERWISE.get(flag):
        return name
    row = FLAGS.get(flag)
    if row is None or not row.key:
        return flag if row is None else f"`rallypoint run {flag}`"
    return row.name if row.metavar else f"{row.name}=True"


class _Named:
    """`named.log_dir` is `spelled("--log-dir")`."""

    def __getattr__(self, name: str) -> str:
        return spelled(f"--{name.replace('_', '-')}")


named = _Named()


def by_register() -> str:
    """Return how any node may lead a job."""
    return f"{named.rdzv_backend} {', '.join(ENGINE_NAMES[:-1])} or {ENGINE_NAMES[-1]}"


def by_directory() -> str:
    """Return how the nodes of a job share a directory."""
    return f"{named.rdzv_backend} {FOR_DIRECTORIES}"


def settings_conflict(differences: Differences) -> SettingsConflictError:
    """For a node whose settings are not the job's. `differences`: of the job's from the node's."""
    flags = {}
    for name, _, _ in differences:
        row = BY_FIELD[name]
        said = spelled(row.spelled)
        flags[name] = said if row.name == name else f"{said} ({name})"
    return SettingsConflictError(differences, flags)


@contextmanager
def naming_parameters(own: ParameterNames | None = None) -> Iterator[None]:
    """Messages that are made within name parameters; also a decorator. `own`: those of the call."""
    token = _names.set(own or {})
    try:
        yield
    finally:
        _names.reset(token)


def carried(call: Callable[[], T]) -> Callable[[], T]:
    """Return the same for another thread, where messages name settings as here."""
    return partial(copy_context().run, call)
