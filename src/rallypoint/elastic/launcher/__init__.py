"""Start a job from a program, with torch's vocabulary.

from rallypoint.elastic.launcher import LaunchConfig, elastic_launch

values = elastic_launch(LaunchConfig(1, 1, nproc_per_node=4), train)(arguments)
"""

from __future__ import annotations

from rallypoint.elastic.launcher.launch_config import (
    LaunchConfig as LaunchConfig,
)
from rallypoint.elastic.launcher.launched_job import (
    elastic_launch as elastic_launch,
)
from rallypoint.elastic.launcher.launched_job import (
    launch as launch,
)
from rallypoint.elastic.launcher.launched_job import (
    launch_agent as launch_agent,
)

__all__ = [
    "LaunchConfig",
    "elastic_launch",
    "launch",
    "launch_agent",
]
