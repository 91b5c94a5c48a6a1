"""The command line of a machine that is always the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import pytest

from rallypoint.cli.machine import ThisHost
from rallypoint.cli.options import parse_run
from rallypoint.cli.values import EVENT_HANDLERS
from rallypoint.config import AgentConfig
from rallypoint.errors import UsageError

PYTHON = "/usr/bin/python3"
PROGRAMS = {"/usr/bin/python3", "/opt/py/bin/python", "echo"}
DEVICES = {"cpu": 6, "gpu": 0, "xpu": 2, "auto": 4}


class SameMachine(ThisHost):
    interpreter = PYTHON

    def count_workers(
        self, word: str, interpreter: str, environ: Mapping[str, str], tell: Callable[[str], None]
    ) -> int:
        assert interpreter in PROGRAMS
        return DEVICES[word]

    def count_gpus(self, environ: Mapping[str, str]) -> int:
        return DEVICES["auto"]

    def find_program(self, name: str) -> str | None:
        return name if name in PROGRAMS else None

    def script_exists(self, path: str) -> bool:
        return path in ("train.py", "./dir")

    def path_kind(self, path: str) -> str:
        return ""

    def head(self, path: str) -> bytes:
        return b""

    def has_module(self, name: str) -> bool:
        return name == "pkg.train"

    def absolute_path(self, path: str) -> str:
        return os.path.join("/where/i/am", path)

    def now(self) -> float:
        return 1_800_000_000.0

    def kept_jobs(self) -> str:
        return "/state/kept"

    def shared_home(self) -> str:
        return ""

    def why_no_records(self, path: str) -> str:
        return ""

    def random_id(self) -> str:
        return "job-abc"

    def handlers(self) -> Sequence[str]:
        return ("file", "theirs")

    def logs_specs(self) -> Sequence[str]:
        return ("default",)

    def event_handlers(self) -> Sequence[str]:
        return EVENT_HANDLERS


MACHINE = SameMachine()


def parse(line: str, **environ: str) -> AgentConfig:
    return parse_run(line.split(), environ, MACHINE)


def refusal(line: str, **environ: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(line, **environ)
    return str(caught.value)
