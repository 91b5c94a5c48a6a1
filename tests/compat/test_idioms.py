"""How public programs embed torch elastic: each idiom works here, or is refused in one line.

The programs of `idioms/` were written from what documentation and issues of such programs tell.
They run as they are with torch, and with us after the replacements of docs/from-torchrun.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.harness.limits import patience
from tests.harness.one_agent import environment, marked

IDIOMS = Path(__file__).with_name("idioms")
REPLACED = (
    (r"torch\.distributed\.elastic\b", "rallypoint.elastic"),
    (r"torch\.distributed\.(launcher|run|launch)\b", r"rallypoint.elastic.\1"),
    (r"from torch\.distributed import", "from rallypoint.elastic.stores import"),
)


class Idiom(NamedTuple):
    """What a program prints, in any order, and how it ends; or the line with which we refuse it."""

    prints: tuple[str, ...]
    exit_code: int = 0
    refused: str = ""


def workers(words: str) -> tuple[str, ...]:
    """What the two workers of a job print that have these words."""
    return (f"worker 0 of 2{words}", f"worker 1 of 2{words}")


TABLE = {
    "actions_of_the_parser": Idiom(workers(" --config full")),
    "agent_of_the_documentation": Idiom(
        ("succeeded True False", "returned ['do trainer 0', 'do trainer 1']")
    ),
    "agent_with_a_master": Idiom(
        ("asks the master", "returned ['0 of 2', '1 of 2']"),
        refused="Agent._rendezvous is never called here: ",
    ),
    "agent_with_hooks": Idiom(("starts 2", "seen SUCCEEDED", "returned [0, 1]")),
    "agent_with_its_loop": Idiom(
        ("runs default", "returned [0, 1]"), refused="Agent._invoke_run is never called here: "
    ),
    "backend_over_a_store": Idiom(
        ("name c10d state None", "state b'one' True", "state b'two' True", "state b'two' False")
    ),
    "configuration_of_its_own": Idiom(("npu False 3", "returned ['7', '7']")),
    "deadline_of_a_block": Idiom(("exit codes [0, -9]",)),
    "events_of_a_platform": Idiom(("started AGENT 2", "True", "[]")),
    "exit_code_of_the_job": Idiom(
        ("rank 1 1 of train.py [1]", "told: True", *workers(" fail")), exit_code=3
    ),
    "function_by_fork": Idiom(("results [10, 15]",)),
    "handler_in_the_registry": Idiom(("color red", "returned ['0 of 2', '1 of 2']")),
    "health_check": Idiom(("alive True", "stopped")),
    "killed_process": Idiom(("failed -9 SIGKILL",)),
    "legacy_launch": Idiom(workers(" --old")),
    "metrics_of_a_platform": Idiom(
        (
            "worked 3",
            "mine __main__.work.success True",
            "mine __main__.work.duration.ms True",
            "mine steps True",
        )
    ),
    "module_in_a_subprocess": Idiom(("exit code 0", *workers(" --stage sft"))),
    "namespace_to_run": Idiom(("failed 3", *workers(" fail"))),
    "options_in_the_environment": Idiom(workers("")),
    "own_error_handler": Idiom(("initialized", "recorded ValueError 4", "raised 4")),
    "own_log_files": Idiom(
        ("asked for [0, 1]", "['0', 'stdout.log'] out 0", "['1', 'stdout.log'] out 1")
    ),
    "own_parser": Idiom(("checks True restarts 3", *workers(" x"))),
    "pickled_task": Idiom(
        (
            "result {'rank': 0, 'learning_rate': 0.1}",
            "failed ValueError: a learning rate of -1 | True",
        )
    ),
    "ports_and_stores": Idiom(("port True data True [b'data 0', b'data 1']",)),
    "processes_of_one_host": Idiom(
        ("failed False returned [(0, '4'), (1, '5')]", "0 hello from a", "1 hello from b")
    ),
    "recorded_main": Idiom(("first error: RuntimeError: loss is NaN", "in the report: True")),
    "sampler_that_resumes": Idiom(("left 4 True True", "cycled [0, 10, 1, 11]")),
    "state_in_a_database": Idiom(("ranks [(0, 2), (1, 2)]",)),
    "stopped_by_a_signal": Idiom(("stopped by SIGTERM",)),
    "words_of_a_command_line": Idiom(("(1, 4) (2, 2)", "3 True", "node-a:29511 train.py 0")),
    "words_to_main": Idiom(workers(" --devices 2")),
}


def test_each_program_has_a_row() -> None:
    assert {path.stem for path in IDIOMS.glob("*.py")} - {"train"} == set(TABLE)
    assert len(TABLE) == 31


@pytest.mark.parametrize("name", TABLE)
def test_an_idiom_works_with_other_imports_or_is_refused_in_one_line(
    name: str, tmp_path: Path
) -> None:
    row = TABLE[name]
    for path in IDIOMS.glob("*.py"):
        text = path.read_text("utf-8")
        for theirs, ours in REPLACED:
            text = re.sub(theirs, ours, text)
        assert not re.search(r"^\s*(import|from) torch", text, re.MULTILINE)
        (tmp_path / path.name).write_text(text)
    done = run(name, tmp_path)
    if row.refused:
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        line = done.stderr.splitlines()[-1]
        assert re.fullmatch(rf"rallypoint\.errors\.\w+: {re.escape(row.refused)}.+", line)
    else:
        assert_done(done, row)


@pytest.mark.frameworks
@pytest.mark.parametrize("name", TABLE)
def test_the_idiom_is_one_of_torch(name: str, tmp_path: Path) -> None:
    for path in IDIOMS.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text("utf-8"))
    assert_done(run(name, tmp_path), TABLE[name])


def run(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The end of a program, which leaves no process."""
    mark = f"{name}.{os.getpid()}"
    done = subprocess.run(
        [sys.executable, f"{name}.py"],
        cwd=folder,
        env=environment(folder, mark, OMP_NUM_THREADS="1"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    assert marked(mark) == []
    return done


def assert_done(done: subprocess.CompletedProcess[str], row: Idiom) -> None:
    """It has printed and ended as the row says."""
    assert done.returncode == row.exit_code, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(row.prints), done.stderr
