"""Every name of the package that a page or a docstring has can be imported as it stands there."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
IMPORT = re.compile(
    r"^ *(?:from (rallypoint[\w.]*) import ([\w, ]+)|import (rallypoint[\w.]*))", re.M
)
QUOTED = re.compile(r"`(rallypoint\.[\w.]+\w)(?:\(.*?\))?`")
NO_MODULES = frozenset(
    {"rallypoint.handlers", "rallypoint.logs_specs", "rallypoint.event_handlers"}
    | {"rallypoint.registers"}
)
"""Groups of entry points."""


def find(name: str) -> object:
    """What a dotted name is. Raises ImportError or AttributeError."""
    parts = name.split(".")
    found: object = import_module(parts[0])
    for at, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            import_module(".".join(parts[:at]))
        found = getattr(found, part)
    return found


def names(text: str) -> list[str]:
    """All that a text imports, and all that it names between backquotes."""
    found = []
    for module, several, alone in IMPORT.findall(text):
        found += (
            [alone] if alone else [f"{module}.{each.split()[0]}" for each in several.split(",")]
        )
    return [*found, *(name for name in QUOTED.findall(text) if name not in NO_MODULES)]


def missing(text: str) -> list[str]:
    absent = []
    for name in names(text):
        try:
            find(name)
        except (ImportError, AttributeError) as error:
            if error.name != "jax":  # Another package, which its plug-in imports.
                absent.append(name)
    return absent


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_what_there_is(page: Path) -> None:
    assert missing(page.read_text("utf-8")) == []


@pytest.mark.parametrize("files", [SOURCES, EXAMPLES], ids=["sources", "examples"])
def test_so_do_docstrings_and_examples(files: list[Path]) -> None:
    absent = {file.name: missing(file.read_text("utf-8")) for file in files}
    assert {name: found for name, found in absent.items() if found} == {}


def test_the_names_were_found() -> None:
    found = [name for page in PAGES for name in names(page.read_text("utf-8"))]
    assert len(found) > 60
    assert "rallypoint.elastic.launcher.LaunchConfig" in found


def test_what_is_not_there_is_missing() -> None:
    assert missing("`rallypoint.process.NumaOptions`") == ["rallypoint.process.NumaOptions"]
    assert missing("from rallypoint.elastic import nothing") == ["rallypoint.elastic.nothing"]
