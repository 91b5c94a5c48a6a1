"""Import time is a feature: what `rallypoint run` may have imported when it forks its workers.

An import that shows up here as new is best moved into the function that needs it. Asyncio and
msgspec are used throughout, so what these import is not listed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.harness.one_agent import environment
from tests.harness.programs import run_program, run_python

STANDARD = {
    "_blake2",
    "_sha2",
    "_sha256",
    "_ctypes",
    "_hashlib",
    "copy",  # for dataclasses
    "ctypes",  # for prctl, which ends workers with their agent
    "dataclasses",
    "gc",
    "hashlib",
    "hmac",
    "mmap",  # what an agent shares with its guard
    "rallypoint",
    "resource",
}
"""By top-level name; what a version of Python imports in place of another's is listed too."""
LATE = {
    "_hashlib",
    "rallypoint.agent.answering",
    "rallypoint.agent.prepared_source",
    "rallypoint.cli.serve",
    "rallypoint.cli.token",
    "rallypoint.core.takeover.consent",
    "rallypoint.core.takeover.handover",
    "rallypoint.core.takeover.heirs",
    "rallypoint.core.takeover.memory",
    "rallypoint.core.takeover.record",
    "rallypoint.core.takeover.recovery",
    "rallypoint.core.takeover.speakers",
    "rallypoint.process.devices",
    "rallypoint.process.prepared.bootstrap",
    "rallypoint.process.prepared.handle",
    "rallypoint.store.fast_path",
    "rallypoint.store.keyvalue",
    "rallypoint.store.server_process",
    "rallypoint.store.server",
    "rallypoint.store.server_connection",
    "rallypoint.testing",
    "rallypoint.wire.c10d",
}
"""Ours that a start of workers has no use for."""
SCRIPT = """
import sys, threading
forks = []
def look(event, arguments):
    if event == "os.fork":
        forks.append((sorted(sys.modules), threading.active_count()))
sys.addaudithook(look)
from rallypoint.cli.main import main
code = main(["run", "--quiet", "worker.py"])
import json
print(json.dumps([code, forks]))
"""
BY_DIRECTORY = ["--rdzv-backend", "file", "--rdzv-endpoint", "shared", "--rdzv-id", "imports"]
COMMAND = """
import runpy, sys
sys.argv = ["rallypoint", "--version"]
try:
    runpy.run_module("rallypoint", run_name="__main__", alter_sys=True)
except SystemExit:
    print(*sys.modules)
"""


def python(script: str, home: Path) -> str:
    return run_python(script, cwd=home, env=environment(home, "imports"), check=True).stdout


def test_what_is_imported_when_the_workers_are_forked(tmp_path: Path) -> None:
    (tmp_path / "worker.py").touch()
    code, forks = json.loads(python(SCRIPT, tmp_path))
    known = set(python("import asyncio, msgspec, sys; print(*sys.modules)", tmp_path).split())
    assert code == 0
    assert len(forks) == 3, "the guard, the relay, the worker"
    assert {threads for _, threads in forks} == {1}, "a process with threads must not fork"
    names = set(forks[-1][0]) - known
    assert "rallypoint.agent.agent" in names, "the wrong fork was looked at"
    assert {name.partition(".")[0] for name in names} <= STANDARD
    assert not names & LATE


@pytest.mark.parametrize("ends", ["0", "'bad'"])
@pytest.mark.parametrize("where", [[], BY_DIRECTORY])
def test_a_job_without_a_plug_in_imports_nothing_of_the_library(
    ends: str, where: list[str], tmp_path: Path
) -> None:
    """In no process of it, and neither where another launcher is told why it failed."""
    (tmp_path / "worker.py").write_text(f"raise SystemExit({ends})")
    error_file = tmp_path / "error.json"
    told = {"PYTHONPROFILEIMPORTTIME": "1", "TORCHELASTIC_ERROR_FILE": str(error_file)}
    line = [sys.executable, "-m", "rallypoint", "run", *where, "worker.py"]
    ran = run_program(line, cwd=tmp_path, env=environment(tmp_path, "imports") | told)
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert bool(ran.returncode) == error_file.exists() == (ends != "0")
    assert "rallypoint.agent.run" in imported
    assert [name for name in imported if name.startswith("rallypoint.elastic")] == []


def test_a_command_leaves_out_what_msgspec_only_tries_to_import(tmp_path: Path) -> None:
    imported = python(COMMAND, tmp_path).split()
    assert "msgspec._core" in imported
    assert "typing_extensions" not in imported


def test_a_program_that_imports_the_command_still_has_typing_extensions(tmp_path: Path) -> None:
    look = "import sys, rallypoint.cli.main; print(type(sys.modules['typing_extensions']).__name__)"
    assert python(look, tmp_path) == "module\n"
