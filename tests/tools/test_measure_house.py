"""The numbers of `tools/measure_house.py`, on small trees and on this one."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tests.harness.programs import run_program
from tools.last_additions import Addition
from tools.measure_house import (
    Figures,
    class_attributes,
    count_additions,
    cycles,
    measure,
    measure_exit,
    parameters,
    read_modules,
    small_for_one_package,
    table,
)

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "measure_house.py"


def write_tree(folder: Path, **files: str) -> Path:
    """A source directory with these modules; `__` in a name separates folders."""
    for name, text in files.items():
        file = folder / "src" / "rallypoint" / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "src"


def test_a_cycle_at_import_and_one_that_only_exists_at_run_time(tmp_path: Path) -> None:
    source_dir = write_tree(
        tmp_path,
        a="import rallypoint.b\n",
        b="from rallypoint.a import x\n",
        c="def f():\n    from rallypoint import d\n",
        d="from rallypoint.c import f\nif TYPE_CHECKING:\n    from rallypoint.a import x\n",
    )
    figures = measure(read_modules(source_dir))
    assert figures.names["import cycles"] == ["rallypoint.a <-> rallypoint.b"]
    assert figures.names["import cycles with lazy imports"] == [
        "rallypoint.a <-> rallypoint.b",
        "rallypoint.c <-> rallypoint.d",
    ]


def test_a_group_of_several_modules_is_one_cycle() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set[str]()}
    assert cycles({name: frozenset(others) for name, others in graph.items()}) == [["a", "b", "c"]]


def test_small_modules_that_one_package_imports(tmp_path: Path) -> None:
    source_dir = write_tree(
        tmp_path,
        one="import rallypoint.two\n",
        two="x = 1\n",
        long="x = 1\n" * 60,
        core__both="from rallypoint import long, two\n",
        core__alone="import rallypoint.core.both\n",
        core__more="import rallypoint.core.both\n",
    )
    assert small_for_one_package(read_modules(source_dir)) == ["core/both.py"]


def test_attributes_are_fields_and_what_methods_assign() -> None:
    tree = ast.parse(
        "class A(Struct):\n    x: int = 0\n    NAMES: ClassVar[int] = 1\n    y = 2\n"
        "    def f(self):\n        self.x = self._z, (self.v, w.u) = 1, 2\n"
        "class B:\n    def f(me):\n        me.a += 1\n        def g(me_too): me_too.b = 1\n"
    )
    assert class_attributes(tree) == {"A": 3, "B": 1}


def test_parameters_are_the_named_ones_without_self() -> None:
    tree = ast.parse(
        "def f(a, /, b, *c, d=1, **e): pass\nclass A:\n    def g(self, a): pass\n"
        "    @classmethod\n    def h(cls): pass\n    @staticmethod\n    def i(a): pass\n"
    )
    assert parameters(tree) == {"f": 3, "A.g": 1, "A.h": 0, "A.i": 1}


def test_before_and_after_stand_side_by_side(tmp_path: Path) -> None:
    before, after = tmp_path / "old", tmp_path / "new"
    write_tree(before, a="x = 1\n", b="import rallypoint.a\n")
    write_tree(after, a="x = 1\n")
    words = ["--tree", after, "--against", before, "--no-job"]
    done = run_program([sys.executable, TOOL, *map(str, words)], check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "|  | before (old) | after |"
    assert "| modules | 2 | 1 |" in lines
    assert "| imports, share of lines | 50.0% | 0.0% |" in lines
    assert "| lines of code, product | 2 | 1 |" in lines
    none = "no history: no git repository"
    assert f"| files to add something | {none} | {none} |" in lines


def test_a_column_has_what_the_last_additions_touched() -> None:
    flags = [
        Addition(("--a", "--b"), "abc", {"source": 2, "tests": 3, "docs": 1}),
        Addition(("--c",), "def", {"source": 4, "tests": 0, "docs": 0}),
    ]
    figures = Figures()
    count_additions({"a flag": flags, "an engine": []}, figures, is_shallow=False)
    assert figures.rows["files of source to add a flag"] == "3.0 (2, 4)"
    assert figures.rows["files of docs to add a flag"] == "0.5 (1, 0)"
    assert figures.rows["files of source to add an engine"] == "none was found"
    assert "shallow" not in figures.rows["files of source to add a flag"]
    count_additions({"a flag": flags}, figures, is_shallow=True)
    assert figures.rows["files of source to add a flag"] == "3.0 (2, 4; the history is shallow)"
    assert figures.names["commits that added a flag"][0].startswith("abc --a, --b: ")


def test_the_exit_of_a_worker_is_followed_to_the_last_line() -> None:
    figures = Figures()
    measure_exit(ROOT / "src", figures)
    modules = figures.names["modules from an exit to the last line"]
    # From the notification, past the machines, to the one place that prints.
    assert {"process", "core", "cli"} <= {path.partition("/")[0] for path in modules}
    assert "observe/printing.py" in modules
    kinds = figures.names["types from an exit to the last line"]
    assert any(kind.endswith(".WorkerExit") for kind in kinds)
    assert "| modules from an exit to the last line |" in table({"here": figures})
