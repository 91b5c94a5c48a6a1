"""Start a job from a program, with torch's vocabulary.

    from rallypoint.launcher import LaunchConfig, elastic_launch

    values = elastic_launch(LaunchConfig(1, 1, nproc_per_node=4), train)(arguments)

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.lazy import exports

if TYPE_CHECKING:
    from rallypoint.launcher.launch_config import LaunchConfig
    from rallypoint.launcher.launched_job import elastic_launch, launch, launch_agent

__all__ = ["LaunchConfig", "elastic_launch", "launch", "launch_agent"]

__getattr__, __dir__ = exports(
    globals(),
    {
        ".launch_config": ("LaunchConfig",),
        ".launched_job": ("elastic_launch", "launch", "launch_agent"),
    },
)
