"""The command line of a machine that is always the same."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rallypoint.cli.machine import Machine
from rallypoint.cli.options import parse_run
from rallypoint.config import AgentConfig
from rallypoint.errors import UsageError

PYTHON = "/usr/bin/python3"
PROGRAMS = {"/usr/bin/python3", "/opt/py/bin/python", "echo"}
DEVICES = {"cpu": 6, "gpu": 0, "xpu": 2, "auto": 4}


def count_workers(word: str, interpreter: str, environ: Mapping[str, str]) -> int:
    assert interpreter in PROGRAMS
    return DEVICES[word]


MACHINE = Machine(
    count_workers=count_workers,
    find_program=lambda name: name if name in PROGRAMS else None,
    script_exists=lambda path: path in ("train.py", "./dir"),
    random_id=lambda: "job-abc",
    interpreter=PYTHON,
)


def parse(line: str, **environ: str) -> AgentConfig:
    return parse_run(line.split(), environ, MACHINE)


def refusal(line: str, **environ: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(line, **environ)
    return str(caught.value)
