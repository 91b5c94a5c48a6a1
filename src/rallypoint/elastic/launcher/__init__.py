"""Start a job from a program, with torch's vocabulary.

from rallypoint.elastic.launcher import LaunchConfig, elastic_launch

values = elastic_launch(LaunchConfig(1, 1, nproc_per_node=4), train)(arguments)
"""

from __future__ import annotations

from rallypoint.elastic.launcher.api import (
    LaunchConfig as LaunchConfig,
    elastic_launch as elastic_launch,
    launch as launch,
    launch_agent as launch_agent,
)
