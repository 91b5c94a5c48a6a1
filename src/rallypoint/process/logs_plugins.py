"""Plug-ins that decide where output goes, by name (`--logs-specs NAME`).

A package offers a class as an entry point of the group `rallypoint.logs_specs`, or of torch's group
`torchrun.logs_specs`. It is made as torchrun makes it, with `log_dir`, `redirects`, `tee` and
`local_ranks_filter` by keyword, and asked through `reify(envs)`; nothing else is required of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from rallypoint.core.wording import raised, shown
from rallypoint.errors import LogsSpecsError, UsageError
from rallypoint.process.logs_specs import LogsSpecs
from rallypoint.process.std_map import Std, StdMap

GROUP = "rallypoint.logs_specs"
TORCH_GROUP = "torchrun.logs_specs"
_TORCH_MODULE = "torch.distributed.elastic.multiprocessing"


def known_logs_specs() -> list[str]:
    """The names that `--logs-specs` takes: `default`, and what installed packages offer."""
    offered = [*entry_points(group=GROUP), *entry_points(group=TORCH_GROUP)]
    return sorted({"default", *(entry.name for entry in offered)})


def make_logs_specs(
    name: str,
    *,
    log_dir: str | None,
    redirects: StdMap,
    tee: StdMap,
    local_ranks_filter: Collection[int | str] | None,
) -> LogsSpecs:
    """Load and make the plug-in of this name; ours comes before torch's. Imports its package.

    Raises UsageError when there is none, and LogsSpecsError when it raises: one line each.
    """
    entry, group = _find(name)
    try:
        made = cast(Callable[..., Any], entry.load())(
            log_dir=log_dir,
            redirects=_for_group(redirects, group),
            tee=_for_group(tee, group),
            local_ranks_filter=None if local_ranks_filter is None else set(local_ranks_filter),
        )
        if not callable(getattr(made, "reify", None)):
            raise TypeError(f"{type(made).__name__} has no method reify")
    except (Exception, SystemExit) as error:
        raise LogsSpecsError(
            f"--logs-specs {name}: {entry.value} of the package "
            f"{entry.dist.name if entry.dist else '?'} can't be used: {raised(error)}"
        ) from error
    return cast(LogsSpecs, made)


def _find(name: str) -> tuple[EntryPoint, str]:
    for group in (GROUP, TORCH_GROUP):
        for entry in entry_points(group=group, name=name):
            return entry, group
    raise UsageError(f"--logs-specs {shown(name)}: needs one of {', '.join(known_logs_specs())}")


def _for_group(wanted: StdMap, group: str) -> object:
    """Torch's classes want torch's Std; whoever is written for torch has imported it by now."""
    std: Any = getattr(sys.modules.get(_TORCH_MODULE), "Std", Std) if group == TORCH_GROUP else Std
    if isinstance(wanted, Std):
        return std(int(wanted))
    return {rank: std(int(streams)) for rank, streams in wanted.items()}
