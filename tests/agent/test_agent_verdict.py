"""A7: the exit code says what kind of end it was, the last lines name the first cause."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.harness.one_agent import OneAgent, agent, ended, free_port

FAILS = """
import os, sys, time
if os.environ["RANK"] == "1":
    tell("pid", os.getpid())
    print("an early word", file=sys.stderr)
    raise ValueError("the batch is empty")
time.sleep(600)
"""
ERROR_FILE = """
import json, os, sys
said = "OSError: no such shard"
stack = "Traceback (most recent call last):\\n  deep inside\\n" + said
more = {"py_callstack": stack, "timestamp": "1"}
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": said, "extraInfo": more}}, file)
sys.exit(17)
"""


NO_PYTHON = ("--no-python", "sh", "-c", "echo 'cannot read the disk' >&2; exit 33")
SEGFAULT = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def outer_message(home: Path, code: int, *options: str, program: str) -> dict[str, Any]:
    """What a launcher around a job that ends with this code finds in the error file that it has
    asked for."""
    outer = home / "outer.json"
    env = {"TORCHELASTIC_ERROR_FILE": str(outer)}
    ended(agent(home, *options, program=program, env=env), code)
    message: dict[str, Any] = json.loads(outer.read_text())["message"]
    return message


def verdict(run: OneAgent) -> str:
    """From the line that says it all to the end."""
    found = run.err.rfind("rallypoint: job")
    assert found >= 0, run.err
    return run.err[found:]


def test_A7_success_is_0_and_one_last_line(tmp_path: Path) -> None:
    run = ended(agent(tmp_path, program="print('done')"), 0)
    assert re.fullmatch(r"rallypoint: job-\w+ succeeded in [\d.]+ s\n", run.err), run.err
    assert run.out == "done\n"


def test_A7_failure_is_1_and_names_the_worker_without_a_decorator(tmp_path: Path) -> None:
    run = ended(agent(tmp_path, "--nproc-per-node=2", program=FAILS), 1)
    first, *rest = verdict(run).splitlines()
    assert re.search(
        rf"failed: rank 1 \(node {socket.gethostname().partition('.')[0]}-0, local rank 1, "
        rf"pid {run.told('pid')[0]}\) exited with code 1 at \d\d:\d\d:\d\d\.\d\d\d",
        first,
    ), first
    text = "\n".join(rest)
    assert "error: ValueError: the batch is empty" in text
    assert "Traceback (most recent call last):" in text
    assert 'raise ValueError("the batch is empty")' in text


@pytest.mark.parametrize(
    ("command", "program", "said"),
    [
        (NO_PYTHON, None, ("exited with code 33", "cannot read the disk")),
        ((), SEGFAULT, ("was killed by SIGSEGV",)),
        ((), ERROR_FILE, ("exited with code 17", "error: OSError: no such shard", "deep inside")),
    ],
    ids=["words of a program that is no Python", "signal", "error file of torch"],
)
def test_A7_the_last_lines_tell_how_a_worker_has_failed(
    tmp_path: Path, command: tuple[str, ...], program: str | None, said: tuple[str, ...]
) -> None:
    text = verdict(ended(agent(tmp_path, *command, program=program), 1))
    for words in said:
        assert words in text


@pytest.mark.parametrize("how", ["--redirects=3", "--tee=3"])
def test_A7_the_log_file_is_named_and_stays(tmp_path: Path, how: str) -> None:
    run = ended(agent(tmp_path, "--nproc-per-node=2", "--log-dir=logs", how, program=FAILS), 1)
    found = re.search(r"log: (\S+)", verdict(run))
    assert found, run.err
    assert "the batch is empty" in Path(found[1]).read_text()
    assert Path(found[1]).is_relative_to(tmp_path / "logs")
    assert "error: ValueError: the batch is empty" in verdict(run)


def test_A7_no_node_within_the_join_timeout_is_75_and_told_to_all_who_ask(tmp_path: Path) -> None:
    outer, summary = tmp_path / "outer.json", tmp_path / "summary.json"
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    options = ("--nnodes=2", endpoint, "--rdzv-id=lonely", "--rdzv-conf=join_timeout=1")
    env = {"TORCHELASTIC_ERROR_FILE": str(outer)}
    lonely = agent(tmp_path, *options, f"--json-summary={summary}", program="", env=env)
    text = verdict(ended(lonely, 75))
    assert "timed out" in text
    assert "1 joined" in text
    why = "waited 1 s for 2 nodes"
    assert why in json.loads(outer.read_text())["message"]["message"]
    told = json.loads(summary.read_text())
    assert (told["outcome"], told["exit_code"], told["rounds"]) == ("timed out", 75, [])
    assert why in told["reason"]


@pytest.mark.parametrize(
    ("option", "program", "code"),
    [
        ("--exit-code=failed=17", "raise SystemExit(3)", 17),
        ("--exit-code=success=40", "", 40),
    ],
)
def test_A7_exit_codes_may_be_overridden(
    tmp_path: Path, option: str, program: str, code: int
) -> None:
    ended(agent(tmp_path, option, program=program), code)


def test_A7_a_launcher_around_this_one_gets_the_error_file_of_the_first_cause(
    tmp_path: Path,
) -> None:
    message = outer_message(tmp_path, 1, program=ERROR_FILE)
    assert message["message"] == "OSError: no such shard"
    assert message["extraInfo"]["timestamp"] == "1", "copied, not made anew"
    assert message["errorCode"] == 17


def test_A7_a_launcher_around_this_one_gets_an_exception_that_no_worker_has_written(
    tmp_path: Path,
) -> None:
    message = outer_message(tmp_path, 1, "--nproc-per-node=2", program=FAILS)
    assert (message["message"], message["errorCode"]) == ("ValueError: the batch is empty", 1)
    assert "the batch is empty" in message["extraInfo"]["py_callstack"]


HANDLED = """
import os, sys, traceback
try: int("x")
except ValueError: traceback.print_exc()
for step in range(4): print("step", step, "ok", file=sys.stderr)
sys.exit("config error: lr must be positive")
"""


@pytest.mark.parametrize("how", [(), ("--log-dir=logs", "--redirects=3"), ("--output=prefix",)])
def test_A7_an_exception_that_was_handled_is_nowhere_the_cause(
    tmp_path: Path, how: tuple[str, ...]
) -> None:
    outer = tmp_path / "outer.json"
    more = {"TORCHELASTIC_ERROR_FILE": str(outer)}
    run = ended(agent(tmp_path, "--log-format=json", *how, program=HANDLED, env=more), 1)
    cause = json.loads(run.err.splitlines()[-1])["cause"]
    expected = "exit code 1; last line: config error: lr must be positive"
    assert (cause["message"], cause["detail_is_traceback"]) == (expected, False)
    assert cause["detail"][-1] == "config error: lr must be positive"
    assert json.loads(outer.read_text())["message"]["message"] == expected


LONG = """
import atexit, sys
atexit.register(lambda: [print("sync: file", n, file=sys.stderr) for n in range(6000)])
raise ValueError("loss is NaN at step 7\\n" + "\\n".join(f"param {n}: nan" for n in range(5000)))
"""


@pytest.mark.parametrize("how", [(), ("--log-dir=logs", "--redirects=3"), ("--output=prefix",)])
def test_A7_an_exception_is_named_whatever_its_length_and_what_comes_after_it(
    tmp_path: Path, how: tuple[str, ...]
) -> None:
    run = ended(agent(tmp_path, *how, program=LONG), 1)
    text = verdict(run)
    assert "    error: ValueError: loss is NaN at step 7\n    its traceback:\n" in text
    assert "      | ValueError: loss is NaN at step 7\n      | param 0: nan\n" in text
    assert len(text) < 8000


def test_A7_a_path_that_holds_nothing_is_not_named(tmp_path: Path) -> None:
    filtered = "--nproc-per-node=2", "--local-ranks-filter=0"
    run = ended(agent(tmp_path, *filtered, program=FAILS), 1)
    assert "log:" not in verdict(run)
    program = "print('no data'); raise SystemExit(3)"
    run = ended(agent(tmp_path, "--log-dir=logs", "--redirects=3", program=program), 1)
    assert re.search(r"log: \S+/stdout\.log \(on ", verdict(run)), run.err


def test_A7_a_launcher_around_this_one_is_told_why_nothing_was_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = f"--metrics-port=127.0.0.1:{taken.getsockname()[1]}"
        told = outer_message(tmp_path, 2, words, program="")
    assert "--metrics-port 127.0.0.1:" in told["message"]


def test_A7_a_launcher_around_this_one_is_told_nothing_of_a_success_or_a_cancelled_job(
    tmp_path: Path,
) -> None:
    outer = tmp_path / "outer.json"
    more = {"TORCHELASTIC_ERROR_FILE": str(outer)}
    ended(agent(tmp_path, program="print('done')", env=more), 0)
    with agent(tmp_path, program="import time; tell('here'); time.sleep(600)", env=more) as run:
        run.wait_told("here")
        run.send(signal.SIGINT)
        assert run.wait() == 130
    assert not outer.exists()
