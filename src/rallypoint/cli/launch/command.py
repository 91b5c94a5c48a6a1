"""`rallypoint launch`: one job on many hosts, from one terminal, over ssh."""

from __future__ import annotations

import asyncio
import os

from msgspec.structs import replace

from rallypoint.cli.access import keep_secrets
from rallypoint.cli.launch.job import LaunchedJob
from rallypoint.cli.launch.options import LAUNCH
from rallypoint.cli.launch.output import OutputWriter
from rallypoint.cli.launch.plan import Asked, read_launch
from rallypoint.cli.machine import ThisHost
from rallypoint.cli.parser import with_hint
from rallypoint.observe.printing import print_error


def run(argv: list[str]) -> int:
    """Launch the job, wait for its end, and return its exit code.

    With --detach it returns when the agents run. Raises UsageError, AccessError and HelpRequested
    before a host is reached, and InvariantError for a bug.
    """
    asked = with_hint(LAUNCH, lambda: read_launch(argv, os.environ, ThisHost()))
    for remark in asked.remarks:
        print_error("rallypoint launch", remark)
    keep_secrets()  # Before there are children that would inherit them.
    return asyncio.run(_launch(_as_here(asked)))


def _as_here(asked: Asked) -> Asked:
    """Return the launch with --output among the agents' options.

    `auto` becomes `prefix` with several hosts, or if stdout and stderr are terminals here: the
    agents, which write to pipes, can't see that. Else it stays `auto`, and is not passed on.
    """
    plan = asked.plan
    mode = plan.output
    if mode == "auto" and (len(plan.hosts) > 1 or (os.isatty(1) and os.isatty(2))):
        mode = "prefix"
    options = plan.options if mode == "auto" else (*plan.options, f"--output={mode}")
    return replace(asked, plan=replace(plan, options=options, output=mode))


async def _launch(asked: Asked) -> int:
    output = OutputWriter(tuple(host.name for host in asked.plan.hosts), asked.plan.output)
    writing = asyncio.get_running_loop().create_task(output.run())
    try:
        return await LaunchedJob(asked, output).run()
    finally:
        output.close()
        await asyncio.gather(writing, return_exceptions=True)
