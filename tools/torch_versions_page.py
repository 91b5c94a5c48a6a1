"""Writes docs/torch-versions.md from the table of `rallypoint/torch_versions.py`.

    python tools/torch_versions_page.py

A test compares the page with the table.
"""

from __future__ import annotations

from pathlib import Path

from rallypoint.torch_versions import COMPARED, KNOWN, VERSIONS

PAGE = Path(__file__).parent.parent / "docs" / "torch-versions.md"
_TOP = f"""\
# What changed in torch's launcher, version by version

Rallypoint works with every torch from {VERSIONS[0]} on, since the launcher does not import it. This
page lists what torch's launcher has gained since then, and what it does here. What a version does
not mention is unchanged. The page is made from one table, `src/rallypoint/torch_versions.py`, by
`python tools/torch_versions_page.py`. What differs whatever the version is in
[from-torchrun](from-torchrun.md).

A flag, or a key of `--rdzv-conf`, that some torch knows is accepted. If it has no effect, one line
says so and why; in the library, a warning of the logger
`rallypoint.elastic.rendezvous.led.parameters`. What no torch knows is an error. The tests compare
with torch {COMPARED}, and `make compat TORCH=2.14.1` with another one.
"""
_KINDS = {"flag": "flag", "key": "`--rdzv-conf` key", "variable": "variable", "name": "Python"}


def page() -> str:
    """Return the whole page."""
    return "\n".join([_TOP, *map(_section, VERSIONS)])


def _section(version: str) -> str:
    rows = [row for row in KNOWN if row.since == version]
    since = " and before" if version == VERSIONS[0] else ""
    head = f"## torch {version}{since}\n\n"
    if not rows:
        return f"{head}Nothing changed.\n"
    alike: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        here = row.here if row.effect else f"accepted, no effect: {row.here}"
        name = row.name if row.kind == "behaviour" else f"`{row.name}`"
        alike.setdefault((_KINDS.get(row.kind, row.kind), here), []).append(name)
    lines = [f"| {', '.join(names)} | {k} | {here} |\n" for (k, here), names in alike.items()]
    return head + "| what | | here |\n| --- | --- | --- |\n" + "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
