"""Every public name of torch's launcher is here, or on the list of docs/from-torchrun.md."""

from __future__ import annotations

import pkgutil
import re
import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from tests.compat.recordings import Recordings

PAGE = (Path(__file__).parents[2] / "docs" / "from-torchrun.md").read_text()
SECTION = PAGE.partition("### Every public name\n")[2].partition("\n## ")[0]
OFFERED, _, LEFT_OUT = SECTION.partition("These are not offered:\n")
ABOVE = "torch.distributed."
TOPS = ("run", "launch", "launcher", "elastic")


def relative(name: object) -> str:
    """Below `torch.distributed`, if it is of the launcher; else empty."""
    below = name.removeprefix(ABOVE) if isinstance(name, str) else ""
    return below if below.partition(".")[0] in TOPS else ""


def homes(module: ModuleType) -> set[str]:
    """Where each public name of a module is defined: those of other packages are not its own."""
    found = set()
    for name, value in vars(module).items():
        # A constant of a type without a module, such as a text, is the module's own.
        home = getattr(value, "__module__", module.__name__)
        is_listed = name in getattr(module, "__all__", ())
        if name.startswith("_") or isinstance(value, ModuleType | bool):
            continue
        if relative(home) or is_listed:
            found.add(f"{relative(home) or relative(module.__name__)}.{name}")
    return found


def public_names() -> list[str]:
    """All that torch has. A module that needs another package counts as one name."""
    names = [f"{ABOVE}{top}" for top in TOPS]
    elastic = import_module(f"{ABOVE}elastic")
    names += [each.name for each in pkgutil.walk_packages(elastic.__path__, f"{ABOVE}elastic.")]
    names += [f"{ABOVE}launcher.api"]
    found = set()
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setitem(sys.modules, "etcd", None)  # torch took the folder tests/etcd for it.
        for name in names:
            if name.rpartition(".")[2].startswith("_"):
                continue
            try:
                found |= homes(import_module(name))
            except ModuleNotFoundError:
                found.add(relative(name))
    return sorted(found)


@pytest.fixture
def theirs(torch_said: Recordings) -> list[str]:
    said: list[str] = torch_said("public_names", "all", public_names)
    return said


def rows(text: str) -> dict[str, str]:
    """The second column by each name of the first."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {name: what for names, what in cells for name in re.findall("`(.*?)`", names)}


def offers(module: str, name: str) -> bool:
    """Whether a module of this path has the name, or such a module."""
    for path, attribute in ((module, name), (f"{module}.{name}", "__name__")):
        try:
            if hasattr(import_module(path), attribute):
                return True
        except (ModuleNotFoundError, ValueError):
            continue
    return False


def longest(names: dict[str, str], name: str) -> str:
    """The entry that is about this name: itself, or a module that it is in; empty: none."""
    fitting = [each for each in names if name == each or name.startswith(f"{each}.")]
    return max(fitting, key=len, default="")


def test_every_name_is_here_or_on_the_list(theirs: list[str]) -> None:
    places, left_out = rows(OFFERED), rows(LEFT_OUT)
    forgotten = []
    for name in theirs:
        place, reason = longest(places, name), longest(left_out, name)
        if len(reason) > len(place):
            continue
        module, _, last = name.rpartition(".")
        offering = [f"rallypoint.{module}", places[place].strip("`") if place else ""]
        if not any(offers(ours, last) for ours in offering):
            forgotten.append(name)
    assert not forgotten, "offer them, or say in docs/from-torchrun.md why not"


def test_the_list_has_only_what_torch_has_and_rallypoint_has_not(theirs: list[str]) -> None:
    places, left_out = rows(OFFERED), rows(LEFT_OUT)
    for entry, reason in left_out.items():
        assert reason
        about = [name for name in theirs if longest({entry: ""}, name)]
        assert about, f"torch has no {entry}"
        place = longest(places, entry)
        if place and entry in theirs:
            module = import_module(places[place].strip("`"))
            assert not hasattr(module, entry.rpartition(".")[2]), f"{entry} is offered"


def test_the_page_has_both_tables(theirs: list[str]) -> None:
    assert len(theirs) > 150
    assert len(rows(OFFERED)) > 8
    assert len(rows(LEFT_OUT)) > 15
