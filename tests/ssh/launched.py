"""Programs for `rallypoint launch`, and what they have done."""

from __future__ import annotations

import json

from tests.harness.cluster import wait_until
from tests.harness.limits import patience
from tests.ssh.servers import Hosts

TELL = """
import json, os
names = ("RANK", "WORLD_SIZE", "RALLYPOINT_NODE_ID", "RALLYPOINT_RUN_ID", "COLOUR", "PWD")
told = {name: os.environ.get(name) for name in names} | {"cwd": os.getcwd()}
print(json.dumps(told), flush=True)
"""
STEPS = """
import os, time
from pathlib import Path
from rallypoint import worker

rank, world, node = (os.environ[n] for n in ("RANK", "WORLD_SIZE", "RALLYPOINT_NODE_ID"))
worker.drain_requested()
Path(f"ran.{node}.{world}").touch()
step = 0
while not Path("finish").exists():
    time.sleep(0.02)
    step += 1
    print("step", step, flush=True)
    if worker.drain_requested():
        print("saving", flush=True)
        Path(f"saved.{node}").write_text(str(step))
        worker.checkpoint_saved(step)
"""
"""Counts steps, and writes all the time, until it is told to finish."""


def told(text: str) -> list[dict[str, str]]:
    """Of each worker, by rank."""
    found = [json.loads(line[line.index("{") :]) for line in text.splitlines() if '{"RANK"' in line]
    return sorted(found, key=lambda each: int(each["RANK"]))


def wait_ran(hosts: Hosts, world: int, *nodes: str) -> None:
    """Until workers of these nodes run in a world of that size."""
    wait_until(
        lambda: all((hosts.work / f"ran.{node}.{world}").exists() for node in nodes),
        f"a world of {world}",
    )


def code_of(started: object) -> int:
    return int(started.wait(patience(60)))  # type: ignore[attr-defined]
