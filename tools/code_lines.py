"""Lines of code, and the budgets that they have.

    python tools/code_lines.py             a row for each group of budgets.toml: lines, budget
    python tools/code_lines.py PATH ...    a row for each path, and the sum

A line of code holds something other than a comment or a docstring. A line within a longer string
is one. `budgets.toml` is the one table of groups; a file belongs to the group with the longest
path that it lies under. tests/test_tidy.py refuses a group that is over its budget.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_name("budgets.toml")
SPARE = 0.02
"""The part of a budget that may stay unused."""
NOT_OURS = ("tests/causes/programs", "tests/compat/every_name.py")
"""Programs as users write them, and what a program has written."""


@dataclass(frozen=True)
class Group:
    """A part of the repository with a budget. Paths are folders or files, below the root."""

    name: str
    paths: tuple[str, ...]
    budget: int


def code_lines(source: str, tree: ast.Module | None = None) -> int:
    """Return the number of lines of code in the source of a module, and parse it without a tree."""
    lines = source.splitlines()
    none = {
        number
        for number, line in enumerate(lines, 1)
        if not (said := line.lstrip()) or said[0] == "#"
    }
    docstrings: set[int] = set()
    for node in statements(tree or ast.parse(source)):
        if docstring_of(node) is not None:
            docstrings.update(_lines_of(node))
        elif node.lineno != node.end_lineno and not none.isdisjoint(_lines_of(node)):
            none -= _lines_of_texts(node)
    return len(lines) - len(none | docstrings)


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements below a node. Most of a tree is expressions, and none is below one."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        for node in getattr(tree, name, ()):
            if isinstance(node, ast.stmt):
                yield node
            yield from statements(node)


def docstring_of(node: ast.stmt) -> str | None:
    """Return the text of a statement that is nothing else."""
    value = node.value if isinstance(node, ast.Expr) else None
    said = value.value if isinstance(value, ast.Constant) else None
    return said if isinstance(said, str) else None


def _lines_of_texts(node: ast.stmt) -> set[int]:
    """Return the lines of texts that are in the statement, and in no other within it."""
    found: set[int] = set()
    left: list[ast.AST] = [node]
    while left:
        for child in ast.iter_child_nodes(left.pop()):
            if isinstance(child, ast.Constant | ast.JoinedStr):
                found.update(_lines_of(child))
            if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                left.append(child)
    return found


def _lines_of(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def read_budgets(table: Path = TABLE) -> tuple[list[Group], dict[str, int]]:
    """Return the groups of the table, and how many there may be of what only becomes less."""
    read = tomllib.loads(table.read_text("utf-8"))
    groups = [Group(row["name"], tuple(row["paths"]), row["lines"]) for row in read["group"]]
    return groups, read["less"]


def count_groups(
    groups: Iterable[Group],
    root: Path = ROOT,
    look: Callable[[str, ast.Module], object] = lambda path, tree: None,
) -> dict[str, int]:
    """Return the lines of code of each group, by its name.

    Calls `look` with the path of each file and what was parsed of it.
    """
    by_path = {path: group.name for group in groups for path in group.paths}
    found = dict.fromkeys(by_path.values(), 0)
    for top in sorted({path.partition("/")[0] for path in by_path}):
        for file in sorted((root / top).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            above = [each for each in by_path if lies_under(path, each)]
            if above and not any(lies_under(path, each) for each in NOT_OURS):
                source = file.read_text("utf-8")
                tree = ast.parse(source)
                found[by_path[max(above, key=len)]] += code_lines(source, tree)
                look(path, tree)
    return found


def lies_under(path: str, folder: str) -> bool:
    """Return whether the path is the folder, or in it."""
    return f"{path}/".startswith(f"{folder}/")


def judge_budget(name: str, budget: int, lines: int, what: str = "lines of code") -> str | None:
    """Return what to do about a group that is over its budget, or far below it; else None."""
    if lines > budget:
        return (
            f"{name} has {lines:,} {what}, {lines - budget:,} above its budget. Remove some, or"
            f" raise the number in tools/{TABLE.name}, in a commit whose message says what the"
            " capability costs and what it has removed"
        )
    if lines < budget * (1 - SPARE):
        return (
            f"{name} has {lines:,} {what}, {budget - lines:,} below its budget: lower the number"
            f" in tools/{TABLE.name} to {lines:,}"
        )
    return None


def main() -> None:
    """Run the command."""
    total = 0
    for path in sys.argv[1:]:
        files = [Path(path)] if Path(path).is_file() else sorted(Path(path).rglob("*.py"))
        lines = sum(code_lines(file.read_text("utf-8")) for file in files)
        total += lines
        print(f"{lines:8,} lines of code in {len(files):4} modules  {path}")
    if sys.argv[1:]:
        print(f"{total:8,} in all")
        return
    groups, _ = read_budgets()
    found = count_groups(groups)
    for group in groups:
        print(f"{found[group.name]:8,} of {group.budget:7,}  {group.name}")


if __name__ == "__main__":
    main()
