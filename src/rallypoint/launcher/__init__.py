"""Start a job from a program, with torch's vocabulary.

    from rallypoint.launcher import LaunchConfig, elastic_launch

    values = elastic_launch(LaunchConfig(1, 1, nproc_per_node=4), train)(arguments)

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.launcher.launch_config import LaunchConfig
    from rallypoint.launcher.launched_job import elastic_launch, launch, launch_agent

__all__ = ["LaunchConfig", "elastic_launch", "launch", "launch_agent"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "launch_config" if name == "LaunchConfig" else "launched_job"
    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
