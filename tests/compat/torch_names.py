"""The public names of torch's launcher, by the path of their module.

`python -m tests.compat.torch_names` writes every_name.py, which imports all that are offered here.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path

OTHER = Path(__file__).with_name("other_torch")
"""What torch of other versions has, a folder for each."""
FILES = ("launch.py", "launcher/*.py", "run.py", "elastic/**/*.py")
_CONSTANTS = ("LOAD_CONST", "LOAD_SMALL_INT")
_ABOVE_IMPORT = (*_CONSTANTS, "IMPORT_NAME", "BUILD_LIST", "LIST_EXTEND")


def public_names() -> dict[str, list[str]]:
    """By module below `torch.distributed`: the names of its `__all__`, those that it defines, and,
    for a package without `__all__`, those that it has from its own modules.

    Read from compiled modules: torch is not imported, and neither is what it can't find here.
    """
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).with_name("distributed")
    files = sorted(file for pattern in FILES for file in folder.glob(pattern))
    return dict(sorted(_by_module(folder, files)))


def left_out() -> set[str]:
    """The names of the page's list, each with its module."""
    page = (Path(__file__).parents[2] / "docs" / "from-torchrun.md").read_text()
    text = page.partition("These are not offered:\n")[2].partition("What differs:")[0]
    first = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `elastic")]
    found: set[str] = set()
    for cell in first:
        names = re.findall("`(.*?)`", cell)
        module = names[0].rpartition(".")[0]
        found |= {f"{module}{each}" if each[0] == "." else each for each in names}
    return found


def ours(module: str) -> str:
    """The module of this library for one below `torch.distributed`."""
    return f"rallypoint.elastic.{module.removeprefix('elastic').lstrip('.')}".rstrip(".")


def listing(theirs: dict[str, list[str]], left_out: set[str]) -> str:
    """A module that imports all of these names, as a program does, but those that are left out."""
    lines = ['"""Imports every public name, for mypy: written by torch_names.py."""', ""]
    lines += ["from __future__ import annotations", ""]
    for module, names in theirs.items():
        offered = [each for each in names if each not in ("log", "logger")]
        offered = [each for each in offered if f"{module}.{each}" not in left_out]
        if offered:
            lines += ["", f"def {module.replace('.', '_')}() -> None:"]
            lines += [f"    from {ours(module)} import {', '.join(offered)}"]
            lines += [f"    print({', '.join(offered)})", ""]
    return "\n".join(lines)


def _by_module(folder: Path, files: list[Path]) -> Iterator[tuple[str, list[str]]]:
    for file in files:
        parts = file.relative_to(folder).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        if not module.rpartition(".")[2].startswith("_"):
            yield module, _names(f"torch.distributed.{module}", file, is_package)


def _names(module: str, file: Path, is_package: bool) -> list[str]:
    code = SourceFileLoader(module, str(file)).get_code(module)
    assert code is not None
    defined: set[str] = set()
    own: set[str] = set()
    listed: set[str] | None = None
    source, before = "", ""
    constants: list[object] = []
    for each in dis.get_instructions(code):
        if each.opname == "EXTENDED_ARG":
            continue
        if each.opname == "IMPORT_NAME":  # Above it: how many dots, and the names.
            source = f"{module}." if constants[-2] == 1 else f"{each.argval}."
        if each.opname == "STORE_NAME" and each.argval == "__all__":
            listed = set(_texts(constants))
        elif each.opname == "STORE_NAME" and before != "IMPORT_NAME":
            if before != "IMPORT_FROM":
                defined.add(each.argval)
            elif is_package and source.startswith(f"{module}."):
                own.add(each.argval)
        if each.opname in _CONSTANTS:
            constants.append(each.argval)
        elif each.opname not in _ABOVE_IMPORT:
            constants.clear()
        before = each.opname
    names = defined | (own if listed is None else listed)
    return sorted(name for name in names if not name.startswith("_"))


def _texts(constants: list[object]) -> Iterator[str]:
    for each in constants:
        for text in each if isinstance(each, tuple) else (each,):
            if isinstance(text, str):
                yield text


if __name__ == "__main__":
    Path(__file__).with_name("every_name.py").write_text(listing(public_names(), left_out()))
