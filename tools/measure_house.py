"""How the sources of Rallypoint are built, in numbers, and how the numbers have changed.

    python tools/measure_house.py [--tree DIR] [--against COMMIT-OR-DIR] [--lists] [--no-job]

Prints a table in Markdown: one column for the tree, or two with `--against` (before, after). With
`--lists` the names behind the numbers follow. How the rows are counted:

* A module is a file under src/rallypoint. Lines are all its lines.
* Imports under `if TYPE_CHECKING` count as lines only. "With lazy imports" adds the imports within
  functions, so that a cycle that exists only at run time is seen too.
* The attributes of a class are its annotated fields and what its methods assign to `self`.
  Inherited ones are not counted.
* Parameters are the named ones, without `self` and `cls`; `*args` and `**kwargs` are not counted.
* "From an exit to the last line": `exit_path.py` runs a one-node job whose worker fails.
* Lines of code are those of `code_lines.py`, by the groups of `budgets.toml`.
* "Files to add": how many files of the source, tests and docs were touched by the commits that made
  the last five additions of a kind, as `last_additions.py` finds them in git's history, and the
  mean. A directory without a history of its own has none of these rows.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":  # It is run by its path, too.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.code_lines import ROOT, count_groups, read_budgets
from tools.last_additions import KINDS, LAST, PARTS, Addition, History

PACKAGE = "rallypoint"
SMALL_LINES, LONG_LINES, ATTRIBUTES, PARAMETERS = 60, 450, 12, 5
JOB_LIMIT_S = 120

TORCH_SIGNATURES = frozenset(
    {"DynamicRendezvousHandler.from_backend", "LocalElasticAgent.__init__", "TCPStore.__init__"}
    | {"RendezvousParameters.__init__", "TailLog.__init__", "construct_and_record_rdzv_event"}
    | {
        "DefaultLogsSpecs.__init__",
        "barrier",
        "start_processes",
        "synchronize",
        "StaticTCPRendezvous.__init__",
        "create_c10d_store",
    }
    | {"PContext.__init__", "MultiprocessContext.__init__", "SubprocessContext.__init__"}
)
"""Functions that have so many parameters because torch's of that name have them. `DefaultLogsSpecs`
has torch's four, and three by keyword."""


@dataclass(frozen=True)
class Module:
    """One source file. Imports are names of other modules of the package."""

    name: str
    path: str
    source: str
    tree: ast.Module
    eager: frozenset[str]
    lazy: frozenset[str]

    @property
    def lines(self) -> int:
        return self.source.count("\n")


@dataclass
class Figures:
    """The rows of one column, and the names behind some of them."""

    rows: dict[str, str] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)

    def count(self, row: str, names: Sequence[str]) -> None:
        """Return the row that is the number of the names."""
        self.rows[row], self.names[row] = str(len(names)), list(names)


def read_modules(source_dir: Path) -> list[Module]:
    """Return all modules of the package under `source_dir`, by name."""
    files = {}
    for file in sorted((source_dir / PACKAGE).rglob("*.py")):
        path = file.relative_to(source_dir).as_posix()
        files[path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = file
    found = []
    for name, file in files.items():
        source = file.read_text("utf-8")
        tree = ast.parse(source)
        kinds: dict[str, set[str]] = {"eager": set(), "lazy": set()}
        for kind, imported in _imports(tree, "eager"):
            known = _in_package(imported, files)
            if known is not None and known != name:
                kinds[kind].add(known)
        path = file.relative_to(source_dir / PACKAGE).as_posix()
        eager, lazy = frozenset(kinds["eager"]), frozenset(kinds["lazy"])
        found.append(Module(name, path, source, tree, eager, lazy))
    return found


def _imports(node: ast.AST, kind: str) -> Iterator[tuple[str, str]]:
    """Yield every import below the node as (kind, dotted name)."""
    for child in _statements(node):
        if isinstance(child, ast.Import):
            yield from ((kind, alias.name) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and child.level == 0:
            yield from ((kind, f"{child.module}.{alias.name}") for alias in child.names)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imports(child, "lazy" if kind == "eager" else kind)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        else:
            yield from _imports(child, kind)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Return the direct children that are statements or hold some.

    Imports and definitions are in no other, and most of a tree are expressions.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child


def _in_package(imported: str, known: Mapping[str, object]) -> str | None:
    """Return the module that an import reaches: `a.b.C` is `a.b` where C is no module."""
    while imported and imported not in known:
        imported = imported.rpartition(".")[0]
    return imported or None


def cycles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other (strongly connected; Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(graph.get(name, ())):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            place = stack.index(name)
            group, stack[place:] = stack[place:], []
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return sorted(found)


def importers(modules: Sequence[Module]) -> dict[str, set[str]]:
    """Return which modules import each, at any time."""
    found: dict[str, set[str]] = {module.name: set() for module in modules}
    for module in modules:
        for other in module.eager | module.lazy:
            found[other].add(module.name)
    return found


def small_for_one_package(modules: Sequence[Module]) -> list[str]:
    """Return the modules of less than 60 lines whose importers all are in one package."""
    by, folder = importers(modules), {m.name: os.path.dirname(m.path) for m in modules}
    return [
        module.path
        for module in modules
        if module.lines < SMALL_LINES and len({folder[name] for name in by[module.name]}) == 1
    ]


def class_attributes(tree: ast.Module) -> dict[str, int]:
    """Return the number of attributes of every class, by its qualified name."""
    found = {}
    for name, node in _named(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        names = {
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign)
            and isinstance(each.target, ast.Name)
            and "ClassVar" not in ast.unparse(each.annotation)
        }
        for method in node.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.args.args:
                names |= _stored(method, method.args.args[0].arg)
        found[name] = len(names)
    return found


def _stored(method: ast.AST, own: str) -> set[str]:
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == own
    }


def parameters(tree: ast.Module) -> dict[str, int]:
    """Return the number of parameters of every function, by its qualified name."""
    found = {}
    for name, node in _named(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            all_ = [each.arg for each in given.posonlyargs + given.args + given.kwonlyargs]
            found[name] = len(all_) - (all_[:1] in (["self"], ["cls"]))
    return found


def _named(node: ast.AST, above: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield every class and function with its qualified name."""
    for child in _statements(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{above}{child.name}", child
            yield from _named(child, f"{above}{child.name}.")
        else:
            yield from _named(child, above)


def measure(modules: Sequence[Module]) -> Figures:
    """Return all that reading the sources tells."""
    figures = Figures()
    lengths = [module.lines for module in modules]
    longest = max(modules, key=lambda module: module.lines)
    functions = [
        ((node.end_lineno or 0) - node.lineno + 1, f"{module.path} {name}")
        for module in modules
        for name, node in _named(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    by = importers(modules)
    rows = figures.rows
    rows["modules"] = str(len(modules))
    rows["lines"] = f"{sum(lengths):,}"
    rows["median lines of a module"] = f"{statistics.median(lengths):g}"
    figures.count("modules under 60 lines", [m.path for m in modules if m.lines < SMALL_LINES])
    alone = [f"{m.path} ({m.lines})" for m in modules if len(by[m.name]) == 1]
    figures.count("modules that one other module imports", alone)
    figures.count("modules under 60 lines for one package", small_for_one_package(modules))
    rows["largest module"] = f"{longest.path} ({longest.lines})"
    rows["longest function"] = "{1} ({0})".format(*max(functions, default=(0, "-")))
    imported = sum(_import_lines(module.tree) for module in modules)
    rows["imports, share of lines"] = f"{imported / sum(lengths):.1%}"
    for row, graph in (
        ("import cycles", {m.name: m.eager for m in modules}),
        ("import cycles with lazy imports", {m.name: m.eager | m.lazy for m in modules}),
    ):
        figures.count(row, [" <-> ".join(group) for group in cycles(graph)])
    long = [f"{m.path} ({m.lines})" for m in modules if m.lines > LONG_LINES]
    figures.count(f"modules over {LONG_LINES} lines", long)
    wide = [
        f"{m.path} {name} ({n})"
        for m in modules
        for name, n in class_attributes(m.tree).items()
        if n > ATTRIBUTES
    ]
    figures.count(f"classes over {ATTRIBUTES} attributes", wide)
    broad = [
        f"{m.path} {name} ({n})"
        for m in modules
        for name, n in parameters(m.tree).items()
        if n > PARAMETERS and name not in TORCH_SIGNATURES
    ]
    figures.count(f"functions over {PARAMETERS} parameters", broad)
    return figures


def measure_code(root: Path, figures: Figures) -> None:
    """Add the lines of code of each group."""
    groups, _ = read_budgets()
    for name, lines in count_groups(groups, root).items():
        figures.rows[f"lines of code, {name}"] = f"{lines:,}"


def measure_history(history: History, figures: Figures) -> None:
    """Add how many files the last additions of each kind touched; or why that is not known."""
    if why := history.why_none():
        figures.rows["files to add something"] = why
        return
    found = {kind: history.additions(kind) for kind in KINDS}
    count_additions(found, figures, is_shallow=history.is_shallow)


def count_additions(
    additions: Mapping[str, Sequence[Addition]], figures: Figures, *, is_shallow: bool
) -> None:
    """Add the numbers of files for each kind and part, and their mean."""
    for kind, found in additions.items():
        few = "; the history is shallow" if is_shallow and len(found) < LAST else ""
        for part in PARTS:
            touched = [each.touched[part] for each in found]
            numbers = f"({', '.join(map(str, touched))}{few})"
            figures.rows[f"files of {part} to add {kind}"] = (
                f"{statistics.mean(touched):.1f} {numbers}" if touched else f"none was found{few}"
            )
        figures.names[f"commits that added {kind}"] = [
            f"{each.commit} {', '.join(each.names)}: {each.touched}" for each in found
        ]


def _import_lines(tree: ast.Module) -> int:
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def measure_exit(source_dir: Path, figures: Figures) -> None:
    """Add what a worker's exit passes on its way to the last line that its job prints."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("exit_path.py"), source_dir, folder],
            capture_output=True,
            text=True,
            timeout=JOB_LIMIT_S,
            check=False,
            env={"PATH": os.defpath, "HOME": folder, "PYTHONPATH": str(source_dir)},
        )
    if done.returncode != 0:
        raise SystemExit(f"exit_path.py failed for {source_dir}:\n{done.stderr}")
    seen: dict[str, list[str]] = json.loads(done.stdout)
    figures.count("modules from an exit to the last line", seen["modules"])
    figures.count("types from an exit to the last line", seen["types"])


def unpack(tree: str, folder: Path) -> tuple[Path, History]:
    """Return the root of a directory, or of a commit, and its history.

    A commit is unpacked into the folder. Ends the program for what is neither.
    """
    if Path(tree).is_dir():
        return Path(tree).resolve(), History(Path(tree))
    parts = ["src", "tests"]
    archive = subprocess.run(
        ["git", "archive", tree, *parts], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode != 0:
        raise SystemExit(f"{tree}: neither a directory nor a commit")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder, History(ROOT, tree)


def table(columns: Mapping[str, Figures]) -> str:
    """Return the rows of all columns as Markdown."""
    names = list(dict.fromkeys(row for each in columns.values() for row in each.rows))
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    lines += [[row, *(each.rows.get(row, "-") for each in columns.values())] for row in names]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", default=str(ROOT))
    parser.add_argument("--against", metavar="COMMIT-OR-DIR")
    parser.add_argument("--lists", action="store_true", help="the names behind the numbers")
    parser.add_argument("--no-job", action="store_true", help="do not run the job that fails")
    asked = parser.parse_args()
    columns = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, tree in enumerate(filter(None, (asked.against, asked.tree))):
            root, history = unpack(tree, Path(folder, str(number)))
            figures = measure(read_modules(root / "src"))
            measure_code(root, figures)
            measure_history(history, figures)
            if not asked.no_job:
                measure_exit(root / "src", figures)
            columns["after" if tree == asked.tree else f"before ({Path(tree).name})"] = figures
    print(table(columns))
    for column, figures in columns.items() if asked.lists else ():
        for row, names in figures.names.items():
            print(f"\n### {row}, {column}\n", *(f"* {name}" for name in names), sep="\n")


if __name__ == "__main__":
    main()
