"""Torch's public names and ours, as objects: where the comparison of signatures finds them.

`.compat/VERSION/bin/python -m tests.compat.torch_objects` writes what that torch says to
other_torch/VERSION, for the tests that compare with it where it is not installed.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from tests.compat.calls import outcomes
from tests.compat.declarations import Shown, declared
from tests.compat.recordings import Recordings, installed
from tests.compat.torch_names import OTHER, left_out, ours, public_names
from tests.harness.resolver import nobody_asked

STORES = ("Store", "TCPStore", "FileStore", "HashStore", "PrefixStore")
"""Those of `torch.distributed` itself, here in `rallypoint.elastic.stores`."""
LOGGERS = ("logger", "log")
_NOT_HERE = ("etcd", "urllib3", "urllib3.exceptions")
"""Packages that torch's modules of etcd import, and use when they are called only."""


def compared_names() -> list[str]:
    """Every public name that is offered here, once for each object of torch."""
    names = [f"{module}.{name}" for module, all_ in public_names().items() for name in all_]
    names = [name for name in names if name.rpartition(".")[2] not in LOGGERS]
    first: dict[int, str] = {}
    for name in (*names, *STORES):
        if name not in left_out():
            value = of_torch(name)
            is_shared = isinstance(value, type) or hasattr(value, "__code__")
            first.setdefault(id(value) if is_shared else id(name), name)
    return list(first.values())


def of_torch(name: str) -> Any:
    """The object behind a name below `torch.distributed`."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(f"torch.distributed.{module}".rstrip(".")), last)


def of_ours(name: str) -> Any:
    """Ours of the same name."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(ours(module) if module else "rallypoint.elastic.stores"), last)


class _Absent(ModuleType):
    """A package that is not installed; any name of it is an exception."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


@contextmanager
def absent_packages() -> Iterator[None]:
    """Torch's modules that need a package which is not installed can be imported meanwhile."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        for name in _NOT_HERE:
            patch.setitem(sys.modules, name, _Absent(name))
        yield


def declared_by_torch() -> dict[str, Shown]:
    """What the installed torch has behind each name that is offered here."""
    with absent_packages():
        return declared(compared_names(), of_torch)


def outcomes_of_torch() -> dict[str, object]:
    """How calls at its edges end."""
    with absent_packages(), nobody_asked():
        return outcomes(lambda path: import_module(f"torch.distributed.{path}".rstrip(".")))


def private_methods() -> list[str]:
    """Of torch's agents: what a subclass can override that no page names."""
    paths = ("api.SimpleElasticAgent", "local_elastic_agent.LocalElasticAgent")
    agents = [of_torch(f"elastic.agent.server.{path}") for path in paths]
    found = {name for agent in agents for name, value in vars(agent).items() if callable(value)}
    return sorted(name for name in found if re.match("_[a-z]", name))


def keep() -> None:
    """Writes what the installed torch says, as another torch than that of the tests."""
    record = Recordings("record", OTHER / installed())
    record("public_names", "all", public_names)
    record("declared", "all", declared_by_torch)
    record("calls", "all", outcomes_of_torch)


if __name__ == "__main__":
    keep()
