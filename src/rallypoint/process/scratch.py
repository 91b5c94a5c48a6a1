"""A directory of this agent alone on storage of this node, for what its workers and it share.

It goes with the agent: the guard removes it when the agent is killed.
"""

from __future__ import annotations

import os

from rallypoint.files import make_private_dir
from rallypoint.process.log_dir import safe_name

_PLACES = ("/tmp", "/var/tmp", "/dev/shm")


def make_scratch(temp_dir: str, run_id: str) -> str:
    """Its absolute path, mode 0700; empty when no place of this node can be written."""
    name = f"rallypoint-board-{safe_name(run_id)}_"
    for place in (os.path.abspath(temp_dir), *_PLACES):
        try:
            return make_private_dir(os.path.join(place, name))
        except OSError:
            continue
    return ""


def remove_scratch(path: str) -> None:
    """Remove it with all in it. Never raises; safe to call again."""
    if not path:
        return
    try:
        os.rmdir(path)  # Each round removes its own.
    except FileNotFoundError:
        return
    except OSError:
        from shutil import rmtree

        rmtree(path, ignore_errors=True)
