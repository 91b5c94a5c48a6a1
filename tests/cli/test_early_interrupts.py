"""Ctrl-C in the first tenths of a second ends a command without a word of Python's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Python imports it before anything else: the signal comes as a module is looked for.
AT_START = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
STARTER = "import sys\nfrom rallypoint.cli.main import main\nsys.exit(main())\n"


def interrupted(home: Path, module: str, *words: str, ignored: bool = False) -> tuple[int, str]:
    """How a Python ends with these words that is interrupted there, and what it wrote."""
    (home / "sitecustomize.py").write_text(AT_START)
    (home / "rallypoint").write_text(STARTER)
    (home / "other.py").write_text(STARTER)
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(home), "INTERRUPT_AT": module, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignored else None,
    )
    return ran.returncode, ran.stdout


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("rallypoint.cli.main", ["rallypoint", "run", "--no-python", "true"]),
        ("msgspec", ["rallypoint", "run", "--no-python", "true"]),
        ("rallypoint.agent.run", ["rallypoint", "run", "--no-python", "true"]),
        ("rallypoint.cli.run_options.rendezvous", ["-m", "rallypoint", "run", "x.py"]),
        ("rallypoint.cli.options", ["-m", "rallypoint.elastic.run", "x.py"]),
        ("asyncio", ["rallypoint", "serve", "--port", "0"]),
        ("rallypoint.cli.launch.plan", ["rallypoint", "launch", "--hosts", "a", "x.py"]),
        ("rallypoint.cli.watch.asking.reach", ["rallypoint", "status"]),
    ],
)
def test_ctrl_c_while_a_command_starts_shows_no_traceback(
    tmp_path: Path, module: str, words: list[str]
) -> None:
    assert interrupted(tmp_path, module, *words) == (-signal.SIGINT, "")


def test_a_command_that_a_shell_has_ignore_ctrl_c_goes_on(tmp_path: Path) -> None:
    words = ("rallypoint", "run", "--quiet", "--no-python", "echo", "ran")
    assert interrupted(tmp_path, "msgspec", *words, ignored=True) == (0, "ran\n")


def test_a_program_that_imports_the_commands_gets_its_own_interrupts(tmp_path: Path) -> None:
    code, said = interrupted(tmp_path, "msgspec", "other.py", "--version")
    assert code == -signal.SIGINT
    assert said.endswith("KeyboardInterrupt\n")
