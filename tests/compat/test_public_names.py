"""Every path and public name of torch's launcher is here, or on the list of from-torchrun.md."""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from tests.compat import every_name
from tests.compat.recordings import Recordings
from tests.compat.torch_names import OTHER, left_out, listing, ours, public_names
from tests.harness.programs import run_python, said_by

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "src" / "rallypoint" / "elastic"
LOGGERS = ("logger", "log")
IMPORT_ALL = """
import sys
{imports}
print(sorted(name for name in sys.modules if name.partition(".")[0] == "torch"))
"""
IMPORT_EACH = """
import os, sys
from importlib import import_module
def forked(names):
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        with os.fdopen(read) as told:
            return told.read().split(), os.waitpid(child, 0)[1]
    for name in names:
        import_module(name)
    if "torch" in sys.modules:
        sys.exit(f"{name} loads torch")
    os.write(write, " ".join(set(sys.modules) - before).encode())
    os._exit(0)
names, before = sys.argv[1:], set(sys.modules)
for name in forked(names)[0]:
    if name.partition(".")[0] != "rallypoint":
        import_module(name)
before = set(sys.modules)
print(*(name for name in names if forked([name])[1]))
"""
"""What is not of Rallypoint is imported before the forks: it would take most of their time."""


@pytest.fixture
def theirs(torch_said: Recordings) -> dict[str, list[str]]:
    said: dict[str, list[str]] = torch_said("public_names", "all", public_names)
    return said


def kept_of_the_other(torch: str) -> dict[str, list[str]]:
    """The names of a torch that is not installed, of which a recording is kept."""
    kept: dict[str, list[str]] = Recordings("recorded", OTHER / torch, torch)(
        "public_names", "all", dict
    )
    return kept


def test_every_path_and_name_of_torch_is_here_or_on_the_list(
    theirs: dict[str, list[str]],
) -> None:
    missing = missing_of(theirs)
    assert not missing, "offer them, or say in docs/from-torchrun.md why not"


@pytest.mark.parametrize("torch", sorted(each.name for each in OTHER.iterdir()))
def test_so_is_all_that_another_torch_has(torch: str, torch_said: Recordings) -> None:
    kept = kept_of_the_other(torch)
    assert not missing_of(kept)
    if torch_said.torch == torch:
        assert public_names() == kept


def missing_of(theirs: dict[str, list[str]]) -> list[str]:
    excepted = left_out()
    return [
        f"{module}.{name}"
        for module, names in theirs.items()
        for name in names
        if name not in LOGGERS
        if f"{module}.{name}" not in excepted
        if not hasattr(import_module(ours(module)), name)
    ]


def test_the_list_has_only_what_torch_has_and_rallypoint_has_not(
    theirs: dict[str, list[str]],
) -> None:
    excepted = left_out()
    assert excepted
    for entry in excepted:
        module, _, name = entry.rpartition(".")
        assert name in theirs[module], f"torch has no {entry}"
        assert not hasattr(import_module(ours(module)), name), f"{entry} is offered"


def test_the_recording_has_all_of_torch(theirs: dict[str, list[str]]) -> None:
    assert len(theirs) > 50
    assert sum(map(len, theirs.values())) > 200


def test_importing_every_path_loads_no_torch(theirs: dict[str, list[str]]) -> None:
    imports = "\n".join(f"import {ours(module)}" for module in theirs)
    said = said_by([sys.executable, "-c", IMPORT_ALL.format(imports=imports)])
    assert said.strip() == "[]"


def test_every_path_can_be_the_first_that_a_program_imports() -> None:
    """Also those that torch lacks."""
    ran = run_python(IMPORT_EACH, *modules(), check=True)
    assert ran.stdout.split() == [], ran.stderr


def modules() -> list[str]:
    """All modules of the library."""
    files = sorted(LIBRARY.rglob("*.py"))
    paths = [file.relative_to(LIBRARY.parents[1]).with_suffix("") for file in files]
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


def test_a_module_has_torchs_path_or_lies_in_a_folder_that_torch_lacks(
    theirs: dict[str, list[str]],
) -> None:
    known = {ours(module) for module in theirs}
    packages = {module.rpartition(".")[0] for module in known}
    strange = [name for name in modules() if name not in known]
    beside = [name for name in strange if name.rpartition(".")[0] in packages]
    assert [name for name in beside if not (find(name) / "__init__.py").exists()] == []


def find(module: str) -> Path:
    return LIBRARY.parents[1].joinpath(*module.split("."))


def homes() -> dict[str, str]:
    """Of each public class and function of torch, by its path: where it is defined."""
    found = {}
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setitem(sys.modules, "etcd", None)  # torch took the folder tests/etcd for it.
        for module, names in public_names().items():
            try:
                theirs: ModuleType = import_module(f"torch.distributed.{module}")
            except ModuleNotFoundError:  # It needs another package.
                continue
            for name in names:
                value: Any = getattr(theirs, name)
                if isinstance(value, type) or hasattr(value, "__code__"):
                    found[f"{module}.{name}"] = f"{value.__module__}.{value.__qualname__}"
    return found


def test_a_name_is_one_object_by_whichever_path_it_came(torch_said: Recordings) -> None:
    by_home: dict[str, set[str]] = defaultdict(set)
    for name, home in torch_said("public_names", "homes", homes).items():
        if name not in left_out():
            by_home[home].add(name)
    several = {home: names for home, names in by_home.items() if len(names) > 1}
    assert len(several) > 50
    for names in several.values():
        assert len({id(attribute(name)) for name in names}) == 1, names


def test_a_package_and_its_modules_have_no_two_things_of_one_name() -> None:
    """Also those that torch has in one of them only."""
    found = {name: things(name) for name in modules()}
    pairs = [(a, b) for a in found for b in found if b.startswith(f"{a}.")]
    assert len(pairs) > 50
    for package, module in pairs:
        for name in found[package].keys() & found[module].keys():
            assert found[package][name] is found[module][name], (package, module, name)


def things(module: str) -> dict[str, object]:
    """The classes and functions of a module, by name, wherever they are defined."""
    values = vars(import_module(module)).items()
    known = (type, FunctionType)
    return {name: each for name, each in values if isinstance(each, known) and name[0] != "_"}


def attribute(name: str) -> object:
    module, _, last = name.rpartition(".")
    value: object = getattr(import_module(ours(module)), last)
    return value


def test_a_file_that_imports_every_name_is_checked_by_mypy(
    theirs: dict[str, list[str]],
) -> None:
    """`make types` does so; this sees that none is missing there."""
    wanted = listing(theirs, left_out())
    kept = Path(every_name.__file__).read_text()
    assert kept == wanted, "run `python -m tests.compat.torch_names`"
