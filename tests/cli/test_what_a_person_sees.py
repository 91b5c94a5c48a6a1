"""The console: in a terminal and out of it, quiet, as JSON; what workers wrote comes out whole."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import random
import re
import select
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from tests.harness.one_agent import (
    LIMIT_S,
    TELL,
    agent,
    ended,
    environment,
    eventually,
    free_port,
    marked,
)

ISATTY = "import os\ntell('tty', os.environ['RANK'], os.isatty(0), os.isatty(1), os.isatty(2))\n"
FAILS_ONCE = """
import os, sys
if os.environ["RALLYPOINT_ROUND"] == "0": raise SystemExit(3)
print("out")
"""


def in_terminal(home: Path, *options: str, program: str, until: str = "") -> tuple[str, int]:
    """All that a terminal was sent, and the exit code; `until` seen, a `go` file is made."""
    mark = uuid.uuid4().hex
    script = home / "worker.py"
    script.write_text(TELL + program)
    env = environment(home, mark, TERM="xterm-256color", OMP_NUM_THREADS="1")
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "rallypoint", "run", *options, str(script)],
            cwd=home,
            env=env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
    finally:
        os.close(slave)
    shown, deadline = b"", time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < deadline:
            if not select.select([master], [], [], 1.0)[0]:
                continue
            try:
                shown += os.read(master, 65536)
            except OSError:  # EIO: the last process that held the terminal is gone.
                break
            if until and until in shown.decode(errors="replace"):
                (home / "go").touch()
        code = process.wait(LIMIT_S)
    finally:
        process.kill()
        process.wait()
        os.close(master)
    eventually(lambda: not marked(mark), "nothing left")
    return shown.decode(), code


def lines(shown: str) -> list[str]:
    """What stays on the screen: without colours and the status lines that were wiped away."""
    kept = re.sub(r"\x1b\[\?7l.*?\x1b\[\?7h", "", shown)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", kept)
    return [line for line in plain.split("\n") if line]


def test_several_workers_in_a_terminal_have_prefixes_and_a_status_line(tmp_path: Path) -> None:
    program = ISATTY + (
        "import sys, time\n"
        "print('to stderr', file=sys.stderr)\n"
        "while not os.path.exists('go'): time.sleep(0.01)"
    )
    shown, code = in_terminal(
        tmp_path, "--nproc-per-node=2", program=program, until="2 workers · running"
    )
    assert code == 0
    assert "round 0 · 2 workers · running 00:0" in shown
    # Workers are not on the terminal, so that lines of two never mix.
    assert sorted(line for line in lines(shown) if "tty" in line) == [
        f"[default {rank}] tty {rank} True False False" for rank in (0, 1)
    ]
    assert sum("] to stderr" in line for line in lines(shown)) == 2
    assert "\x1b[" in shown.partition("[default 0]")[0][-8:], "the prefix has a colour"
    assert re.fullmatch(r"rallypoint: job-\w+ succeeded in .*", lines(shown)[-1])


def test_one_worker_in_a_terminal_has_the_terminal(tmp_path: Path) -> None:
    shown, code = in_terminal(tmp_path, program=ISATTY)
    assert code == 0
    assert "tty 0 True True True" in lines(shown)


def test_output_may_be_inherited_in_a_terminal_too(tmp_path: Path) -> None:
    shown, _ = in_terminal(tmp_path, "--output=inherit", "--nproc-per-node=2", program=ISATTY)
    assert {"tty 0 True True True", "tty 1 True True True"} <= set(lines(shown))


@pytest.mark.parametrize("workers", [1, 2])
def test_out_of_a_terminal_the_workers_bytes_are_their_own(tmp_path: Path, workers: int) -> None:
    program = (
        "import os, random\n"
        "if os.environ['RANK'] == '0':\n"
        "    with open(1, 'wb', closefd=False) as out:\n"
        "        out.write(random.Random(7).randbytes(5 << 20))"
    )
    run = ended(agent(tmp_path, f"--nproc-per-node={workers}", program=program), 0)
    wrote = random.Random(7).randbytes(5 << 20)
    assert hashlib.sha256(run.raw_out).digest() == hashlib.sha256(wrote).digest()


def test_a_job_that_goes_well_is_one_line_of_ours(tmp_path: Path) -> None:
    run = ended(agent(tmp_path, program="print('mine')"), 0)
    assert len(run.err.splitlines()) == 1
    assert run.out == "mine\n"


def test_a_restart_is_told_with_its_reason(tmp_path: Path) -> None:
    run = ended(agent(tmp_path, "--max-restarts=2", program=FAILS_ONCE), 0)
    end, restart, last = run.err.splitlines()
    assert "round 0 ended: rank 0" in end
    assert "exited with code 3" in end
    assert "restart 1 of 2" in restart
    assert "after 1 restart" in last


def test_quiet_leaves_what_matters(tmp_path: Path) -> None:
    run = ended(agent(tmp_path, "--quiet", program="print('mine')"), 0)
    assert run.err == ""
    run = ended(agent(tmp_path, "--quiet", program="raise SystemExit(4)"), 1)
    assert "exited with code 4" in run.err


def test_every_line_of_json_parses(tmp_path: Path) -> None:
    options = ("--log-format=json", "--max-restarts=1", "--nproc-per-node=2")
    run = ended(agent(tmp_path, *options, program=FAILS_ONCE), 0)
    records = [json.loads(line) for line in run.err.splitlines()]
    names = [record["event"] for record in records]
    for name in ("round_joined", "workers_started", "round_ended", "restart"):
        assert name in names
    assert names[-1] == "verdict"
    assert all({"time", "event"} <= record.keys() for record in records[:-1])


def test_LOGLEVEL_says_how_much_is_told(tmp_path: Path) -> None:
    told = {}
    for level in ("DEBUG", "INFO", "ERROR"):
        run = ended(
            agent(tmp_path, "--max-restarts=1", program=FAILS_ONCE, env={"LOGLEVEL": level}), 0
        )
        told[level] = len(run.err.splitlines())
    assert told["DEBUG"] > told["INFO"] > told["ERROR"] == 1
    run = ended(agent(tmp_path, program="", env={"LOGLEVEL": "loud"}), 2)
    assert "LOGLEVEL=loud" in run.err


def test_a_wait_is_told_once_it_lasts(tmp_path: Path) -> None:
    options = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=x")
    with agent(tmp_path, *options, program="") as run:
        run.wait_said("waiting for 1 more node (1 of 2 joined)")
        run.send(15)
        assert run.wait() == 143
    assert run.err.count("waiting for") == 1


def test_a_missing_module_names_the_python_that_the_person_uses_else(tmp_path: Path) -> None:
    other = tmp_path / "env" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.symlink_to(sys.executable)
    missing = "import no_such_module_at_all"
    env = {"VIRTUAL_ENV": str(tmp_path / "env")}
    run = ended(agent(tmp_path, program=missing, env=env), 1)
    hint = f"no_such_module_at_all is installed for {other}, set PYTHON_EXEC={other}"
    assert hint in run.err.splitlines()[-2]
    run = ended(agent(tmp_path, program=missing, env=env | {"PYTHON_EXEC": str(other)}), 1)
    assert "set PYTHON_EXEC" not in run.err
