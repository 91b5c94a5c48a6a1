"""Packages that plug something in, installed in a folder of a test."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rallypoint.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo


def install(
    site: Path, entry_points: Mapping[str, Sequence[str]], **modules: str
) -> dict[str, str]:
    """Install a package of modules, whose texts are given by name, with its entry points by group.
    Returns the environment in which it is found."""
    name = next(iter(modules))
    info = site / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    groups = ("\n".join([f"[{group}]", *lines, ""]) for group, lines in entry_points.items())
    (info / "entry_points.txt").write_text("".join(groups))
    for module, text in modules.items():
        (site / f"{module}.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(site), *filter(None, sys.path)])}


def offer_event_handler(folder: Path, name: str, module: str, text: str) -> None:
    """Install, in a folder, a package whose `module.make` is an event handler's maker."""
    install(folder, {"rallypoint.event_handlers": [f"{name} = {module}:make"]}, **{module: text})


FIVE_METHODS = """
import os, sys, time
from rallypoint.errors import RendezvousGracefulExitError
from rallypoint.elastic.stores.hash_store import HashStore
class Handler:
    closed = False
    def __init__(self, params):
        assert params.endpoint == "anything" and params.get("colour") == "blue", vars(params)
        self.params = params
    def next_rendezvous(self):
        return HashStore(), 0, 1
    def is_closed(self): return self.closed
    def set_closed(self):
        self.closed = True
        os.write(1, b"closed\\n")
    def num_nodes_waiting(self): return 0
    def get_run_id(self): return self.params.run_id
class Broken(Handler):
    def next_rendezvous(self): raise KeyError("no such cluster")
class Unready(Handler):
    def next_rendezvous(self): return None
class Stuck(Handler):
    def next_rendezvous(self):
        os.write(1, b"meeting now\\n")
        while self.params.get("meets") == "never": time.sleep(60)
        return super().next_rendezvous()
    def set_closed(self):
        while True: time.sleep(60)
class Changing(Handler):
    met = 0
    def next_rendezvous(self):
        self.met += 1
        return super().next_rendezvous()
    def num_nodes_waiting(self): return int(self.met == 1)
class Unneeded(Handler):
    def next_rendezvous(self): raise RendezvousGracefulExitError("the job ended without it")
def stuck(): return Stuck
def unneeded(): return Unneeded
def changing(): return Changing
def peers():
    from rallypoint.elastic.rendezvous.c10d_rendezvous_backend import create_handler_from
    def create(params):
        params.config.setdefault("store_type", "file")
        words = dict(zip(sys.argv, sys.argv[1:]))
        if name := words.get("--node-id"): params.config["node_id"] = name
        return create_handler_from(params)
    return create
def five(): return Handler
def broken(): return Broken
def unready(): return Unready
"""
HANDLERS = ("five", "broken", "unready", "stuck", "unneeded", "changing", "peers")


def offer_handlers(folder: Path) -> dict[str, str]:
    """A package that offers handlers; the environment in which it is installed."""
    entries = [f"{name} = someone_elses:{name}" for name in HANDLERS]
    return install(folder / "site", {"rallypoint.handlers": entries}, someone_elses=FIVE_METHODS)


class Fixed(RendezvousHandler):
    """What an out-of-tree handler may look like: the original methods alone."""

    def __init__(self, name: str) -> None:
        self._name = name

    def get_backend(self) -> str:
        return self._name

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo("store", 1, 2, None)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "job"

    def shutdown(self) -> bool:
        return True
