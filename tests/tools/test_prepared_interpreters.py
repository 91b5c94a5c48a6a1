"""Programs of the interpreter that has torch already are what they are with a plain one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.one_agent import eventually
from tests.harness.prepared.interpreter import PreparedInterpreter, prepared_interpreter
from tests.harness.proc import is_alive
from tests.harness.programs import run_program

SHOWS = """
import atexit, json, os, sys
atexit.register(print, "at exit")
print(json.dumps([
    sys.argv, sys.path[0], os.getcwd(), dict(os.environ), __name__, sys.stdin.read(),
    sys.modules["__main__"].__dict__ is globals(), sorted(os.listdir("/proc/self/fd")),
]))
"""


@pytest.fixture(scope="module")
def prepared() -> Iterator[PreparedInterpreter]:
    with prepared_interpreter(["json"]) as made:
        yield made


def ran(python: str, folder: Path, *words: str) -> tuple[int, str, str]:
    """How it ends, and what it prints, without the frames of the prepared process."""
    done = run_program(
        [python, *words], cwd=folder, env={"A": "b", "LANG": "C.UTF-8"}, input="typed"
    )
    lines = done.stderr.splitlines(keepends=True)
    return done.returncode, done.stdout, "".join(line for line in lines if line[0] != " ")


@pytest.mark.parametrize(
    "program",
    [
        SHOWS,
        "raise SystemExit(7)",
        "import sys; sys.exit('no data')",
        "1 / 0",
        "import os; os._exit(3)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(os.getpid(), 15)",
        "raise KeyboardInterrupt",
        "import threading, time; threading.Timer(0.1, print, ['late']).start()",
    ],
)
@pytest.mark.parametrize("how", ["-c", "-m", "a file"])
def test_a_program_runs_and_ends_as_with_a_plain_interpreter(
    prepared: PreparedInterpreter, program: str, how: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(program)
    begin = {"-c": ["-c", program], "-m": ["-m", "program"], "a file": ["program.py"]}[how]
    expected = ran(sys.executable, tmp_path, *begin, "x", "-y")
    assert ran(prepared.path, tmp_path, *begin, "x", "-y") == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_reaches_the_program(prepared: PreparedInterpreter, number: int) -> None:
    # Python runs no handler of a signal that arrives just before a sleep until that sleep ends.
    program = (
        f"import signal, sys, time; signal.signal({number:d}, lambda *_: sys.exit(5))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.1)"
    )
    with subprocess.Popen([prepared.path, "-c", program], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"up\n"
        running.send_signal(number)
        assert running.wait(60) == 5


STAYS = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def test_a_program_whose_client_is_killed_ends_with_its_children(
    prepared: PreparedInterpreter,
) -> None:
    with subprocess.Popen([prepared.path, "-c", STAYS], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        pids = list(map(int, running.stdout.readline().split()))
        running.kill()
    eventually(lambda: not any(map(is_alive, pids)), "the program and its child to end")


def test_nothing_is_left_of_a_prepared_process_whose_test_process_is_killed(tmp_path: Path) -> None:
    program = (
        "import subprocess, time\n"
        "from tests.harness.prepared.interpreter import prepared_interpreter\n"
        "with prepared_interpreter(['json']) as made:\n"
        "    subprocess.Popen([made.path, '-c', 'import os, time; print(os.getpid(), os.getppid(),"
        " flush=True); time.sleep(600)'])\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        pids = list(map(int, running.stdout.readline().split()))
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        running.kill()
    eventually(lambda: not any(map(is_alive, pids)), "the prepared process and its program to end")


def test_modules_may_be_added(prepared: PreparedInterpreter) -> None:
    program = "import sys; print('wave' in sys.modules)"
    command = [prepared.also("wave"), "-c", program]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"True\n"
    assert os.path.basename(command[0]) == "python-wave"
