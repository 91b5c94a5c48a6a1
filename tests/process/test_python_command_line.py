"""What `python ...` is asked to run, and that what runs it in its place does the same."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path

import pytest
from tests.harness.programs import run_program

from rallypoint.process.prepared import command_line
from rallypoint.process.prepared.command_line import RUN_PATH, CommandLine, parse

TELL = """
import json, os, sys
assert sys.modules["__main__"].__dict__ is globals(), "somebody else's main module"
spec = __spec__ and __spec__.name
print(json.dumps([__name__, sys.argv, __file__, sys.path[0], spec, __package__ or ""]))
"""
RUN = f"""
import sys
sys.path.insert(0, {str(Path(command_line.__file__).parents[2])!r})
from rallypoint.process.prepared import command_line
sys.path[:2] = [""]
line = command_line.parse(sys.argv[1:])
sys.path[0] = command_line.first_path(line)
command_line.run(line, sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("python3 -u a.py x -m y", ("python3", ("-u",), "script", "a.py", ("x", "-m", "y"))),
        (
            "/b/pypy3 -X dev -u -m a.b -c",
            ("/b/pypy3", ("-X", "dev", "-u"), "module", "a.b", ("-c",)),
        ),
        ("python -Wignore -W error a", ("python", ("-Wignore", "-W", "error"), "script", "a", ())),
        ("python -c pass", None),
        ("python -", None),
        ("python -i a.py", None),
        ("python -m", None),
        ("python", None),
        ("sleep 1", None),
        ("", None),
    ],
)
def test_what_a_command_line_asks_for(argv: str, line: tuple[object, ...] | None) -> None:
    assert parse(argv.split()) == line


def test_the_program_of_run_path_is_known() -> None:
    line = CommandLine("python", ("-u",), "path", "a.py", ("-c", "x"))
    assert parse(["python", "-u", "-c", RUN_PATH, "a.py", "-c", "x"]) == line


def output(home: Path, *argv: str) -> object:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = run_program([sys.executable, *argv], cwd=home, env=environ, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "words",
    ["a.py x", "./a.py", "sub/link.py", "package", "archive.zip y", "-m a -v", "-m package.inner"],
)
def test_it_runs_as_python_runs_it(words: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(TELL)
    for folder in ("sub", "package"):
        (tmp_path / folder).mkdir()
    (tmp_path / "package" / "__main__.py").write_text(TELL)
    (tmp_path / "package" / "inner.py").write_text(TELL)
    (tmp_path / "sub" / "link.py").symlink_to(tmp_path / "a.py")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", TELL)
    by_python = output(tmp_path, *words.split())
    assert output(tmp_path, "-c", RUN, "python", "-u", *words.split()) == by_python


def test_run_path_runs_as_by_c(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(TELL)
    by_python = output(tmp_path, "-c", RUN_PATH, "a.py", "x")
    assert output(tmp_path, "-c", RUN, "python", "-c", RUN_PATH, "a.py", "x") == by_python
