"""Messages name the options of the command line. Who calls the library is told about parameters
instead: each entry of the library replaces the names in what passes through it.

    @naming_parameters(OF_A_HANDLER)
    def create_handler_from(params): ...

An option that no call takes is shown as that of the command, in backticks; what stands in backticks
or quotes is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rallypoint.core.settings import FLAGS
from rallypoint.errors import ChildFailedError, RallypointError

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
_ALIKE = frozenset(
    {"rdzv_endpoint", "rdzv_backend", "local_addr", "master_addr", "master_port", "role"}
    | {"port_range", "progress_pattern", "max_no_progress", "history"}
    | {"nproc_per_node", "max_restarts", "monitor_interval", "hang_timeout", "virtual_local_rank"}
    | {"start_method", "preload", "shutdown_timeout", "drain_deadline", "signals_to_handle"}
    | {"log_dir", "redirects", "tee", "local_ranks_filter", "logs_specs", "event_log_handler"}
    | {"log_line_prefix_template", "duplicate_stdout_filters", "duplicate_stderr_filters"}
)
"""Of launches, specs and logs; the table of settings says which keys handlers take."""
_FLAG = re.compile(r"`[^`]*`|(?<![\w/.='\"-])--[a-z][a-z-]*[a-z]")


def in_parameters(text: str, own: ParameterNames | None = None) -> str:
    """The text with parameters in place of flags; `own` are those of the call."""
    return _FLAG.sub(lambda found: _parameter(found[0], own or {}), text)


def _parameter(flag: str, own: ParameterNames) -> str:
    row = FLAGS.get(flag)
    if name := own.get(flag) or _OTHERWISE.get(flag):
        return name
    if row is None:
        return flag
    if not (row.key or row.name in _ALIKE):
        return f"`rallypoint run {flag}`"
    return row.name if row.metavar else f"{row.name}=True"


@contextmanager
def naming_parameters(own: ParameterNames | None = None) -> Iterator[None]:
    """What is raised within names parameters; also a decorator. The report about failed workers
    stays as it is, because it quotes them."""
    try:
        yield
    except RallypointError as error:
        first = error.args[0] if error.args else None
        if isinstance(first, str) and not isinstance(error, ChildFailedError):
            error.args = (in_parameters(first, own), *error.args[1:])
        raise
