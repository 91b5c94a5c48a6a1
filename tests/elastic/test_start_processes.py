"""Processes of one node as a library: what was asked for runs, and nothing of it remains."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.harness.descriptors import open_descriptors, own_children
from tests.harness.limits import patience
from tests.harness.memory_cgroup import inside, memory_cgroup
from tests.harness.one_agent import eventually
from tests.harness.prepared import processes
from tests.harness.proc import is_alive
from tests.harness.refusals import refused_in_one_line

from rallypoint.elastic.multiprocessing import (
    DefaultLogsSpecs,
    MultiprocessContext,
    PContext,
    RunProcsResult,
    Std,
    SubprocessContext,
    redirect,
    start_processes,
)
from rallypoint.errors import ParameterError, UsageError

LIMIT_S = patience(60.0)


@pytest.fixture(autouse=True)
def nothing_remains() -> Iterator[None]:
    """No child, no descriptor, no thread, and the signals are as they were."""
    processes.prepare()
    fds, children, threads = open_descriptors(), own_children(), set(threading.enumerate())
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert open_descriptors() - fds == set()
    assert set(threading.enumerate()) - threads == set()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert own_children() - children == set()


@pytest.fixture
def specs(tmp_path: Path) -> DefaultLogsSpecs:
    """Both streams of all in files."""
    return DefaultLogsSpecs(str(tmp_path / "logs"), redirects=Std.ALL)


def shell(specs: DefaultLogsSpecs, *scripts: str, grace_s: float = LIMIT_S) -> PContext:
    """One shell per script."""
    args = {rank: ("-c", script) for rank, script in enumerate(scripts)}
    envs = {rank: {"MINE": f"mine {rank}"} for rank in args}
    return start_processes("job", "sh", args, envs, specs, grace_s=grace_s)


def result_of(context: PContext) -> RunProcsResult:
    result = context.wait(LIMIT_S)
    assert result is not None, "it does not end"
    context.close()
    assert not any(map(is_alive, context.pids().values()))
    return result


def test_P1_all_succeed(specs: DefaultLogsSpecs) -> None:
    context = shell(specs, "echo $MINE $0; echo err >&2", "echo $TORCHELASTIC_ERROR_FILE")
    assert sorted(context.pids()) == [0, 1]
    result = result_of(context)
    assert not result.is_failed()
    assert result.return_values == {0: None, 1: None}
    assert Path(result.stdouts[0]).read_text() == "mine 0 sh\n"
    assert Path(result.stderrs[0]).read_text() == "err\n"
    assert Path(result.stdouts[1]).read_text().endswith("/1/error.json\n")
    assert context.wait(0) is result


def test_P5_a_context_says_what_it_runs_and_where_its_files_are(specs: DefaultLogsSpecs) -> None:
    context = start_processes("job", os.getpid, {0: ()}, {0: {"MINE": "1"}}, specs)
    result = result_of(context)
    assert isinstance(context, MultiprocessContext)
    assert (context.name, context.entrypoint, context.nprocs) == ("job", os.getpid, 1)
    assert context.args == {0: ()}
    assert context.error_files == {0: str(Path(result.stdouts[0]).with_name("error.json"))}
    assert context.envs == {0: {"MINE": "1", "TORCHELASTIC_ERROR_FILE": context.error_files[0]}}
    assert (context.stdouts, context.stderrs) == (result.stdouts, result.stderrs)
    assert result.return_values == context.pids()


def test_a_context_can_be_made_as_torchs_and_started_later(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects={0: Std.OUT})
    scripts = {0: ("-c", "echo 0"), 1: ("-c", "exit 3")}
    context = SubprocessContext("job", "sh", scripts, {0: {}, 1: {}}, specs)
    assert not isinstance(context, MultiprocessContext)
    assert (context.nprocs, context.pids(), context.args) == (2, {}, scripts)
    assert context.stdouts[1] == context.stderrs[0] == "" != context.stdouts[0]
    context.start()
    result = result_of(context)
    assert result.failures[1].exitcode == 3

    called = MultiprocessContext("job", int, {0: ("7",)}, {0: {}}, "fork", specs)
    called.start()
    assert result_of(called).return_values == {0: 7}
    with pytest.raises(ParameterError, match="start_method 'thread'"):
        MultiprocessContext("job", int, {0: ("7",)}, {0: {}}, "thread", specs)


def test_P5_a_temporary_directory_is_where_tempfile_says_and_stays_only_for_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    specs = DefaultLogsSpecs()
    for _ in range(2):
        assert not result_of(shell(specs, "exit 0", "exit 0")).is_failed()
        assert list(tmp_path.iterdir()) == []

    wrote = shell(DefaultLogsSpecs(redirects={0: Std.OUT}), "echo kept", "exit 0")
    result = result_of(wrote)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept == [Path(result.stdouts[0])]
    assert kept[0].read_text() == "kept\n"


def test_a_context_that_is_started_again_is_refused_and_leaves_the_signals_as_they_were(
    specs: DefaultLogsSpecs,
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    context = SubprocessContext("job", "true", {0: ()}, {0: {}}, specs)
    context.start()
    with pytest.raises(ValueError, match="start: was called before; make another context"):
        context.start()
    assert not result_of(context).is_failed()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("args", "envs", "words"),
    [
        ({0: (), 2: ()}, {0: {}, 1: {}}, "args has the local ranks 0, 2: needs 0 to 1"),
        ({0: (), 1: ()}, {1: {}, 2: {}}, "envs has the local ranks 1, 2: needs 0 to 1"),
        ({0: (), 1: ()}, {0: {}}, "args are for 2 local ranks, envs for 1"),
        ({}, {}, "args is empty: needs an entry for each local rank, from 0"),
        ({0: ()}, {0: {"A": 5}}, "envs has for local rank 0 'A': 5: needs a name without ="),
        ({0: ()}, {0: {"A=B": "1"}}, "envs has for local rank 0 'A=B': '1'"),
        ({0: ()}, {0: {"A": "\0"}}, "envs has for local rank 0 'A': "),
    ],
)
def test_P1_local_ranks_that_do_not_count_from_0_are_refused(
    specs: DefaultLogsSpecs,
    args: dict[int, tuple[str, ...]],
    envs: dict[int, dict[str, Any]],
    words: str,
) -> None:
    assert issubclass(ParameterError, ValueError)
    with refused_in_one_line(ParameterError, "local rank", words):
        start_processes("job", "true", args, envs, specs)


def test_P1_a_program_that_does_not_exist_leaves_nothing(specs: DefaultLogsSpecs) -> None:
    with pytest.raises(FileNotFoundError, match="no such program in PATH"):
        start_processes("job", "no-such-program", {0: (), 1: ()}, {0: {}, 1: {}}, specs)
    with pytest.raises(PermissionError):
        start_processes("job", "/etc", {0: ()}, {0: {}}, specs)


def test_P2_only_the_real_failure_is_listed(specs: DefaultLogsSpecs, tmp_path: Path) -> None:
    fails = f"until [ -e {tmp_path}/up ]; do :; done; echo oh >&2; exit 3"
    deaf = f"trap '' TERM; : > {tmp_path}/up; sleep 600 & wait; sleep 600"
    context = shell(specs, "sleep 600", fails, deaf, grace_s=0.2)
    result = result_of(context)
    assert result.is_failed()
    assert list(result.failures) == [1]
    assert result.return_values == {}
    failure = result.failures[1]
    assert (failure.local_rank, failure.exitcode, failure.pid) == (1, 3, context.pids()[1])
    assert failure.message == "exit code 3; last line: oh"
    assert failure.log_file == result.stderrs[1]


def test_wait_is_as_patient_as_it_is_told(specs: DefaultLogsSpecs) -> None:
    context = shell(specs, "sleep 600")
    assert context.wait(0) is None
    assert context.wait(0.05, period=100) is None
    context.close()
    result = context.wait()
    assert result is not None
    assert (result.failures, result.return_values) == ({}, {})


def test_close_sends_the_signal_that_is_wanted_and_waits(
    specs: DefaultLogsSpecs, tmp_path: Path
) -> None:
    polite = f"trap 'echo bye; exit 0' USR1; : > {tmp_path}/up; while :; do sleep 0.01; done"
    context = shell(specs, polite)
    eventually((tmp_path / "up").exists, "the shell")
    context.close(signal.SIGUSR1, timeout=LIMIT_S)
    result = context.wait(0)
    assert result is not None
    assert Path(result.stdouts[0]).read_text() == "bye\n"


def test_close_ends_what_ignores_its_signal(specs: DefaultLogsSpecs, tmp_path: Path) -> None:
    context = shell(specs, f"trap '' TERM; : > {tmp_path}/up; sleep 600 & wait; sleep 600")
    eventually((tmp_path / "up").exists, "the shell")
    context.close(timeout=0.1)
    assert not is_alive(context.pids()[0])
    context.close()


def test_W15_what_an_exited_process_left_running_is_ended(
    specs: DefaultLogsSpecs, tmp_path: Path
) -> None:
    context = shell(specs, f"sleep 600 & echo $! > {tmp_path}/pid")
    assert not result_of(context).is_failed()
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_W15_close_just_when_they_exit(specs: DefaultLogsSpecs) -> None:
    for _ in range(20):
        context = shell(specs, "exit 0", "exit 0")
        context.close(timeout=LIMIT_S)
        assert not any(map(is_alive, context.pids().values()))


def double(text: str, times: int) -> str:
    """What function workers run."""
    print("doubling")
    return text * times


def fail_at(rank: int) -> None:
    """Fail if we are that one."""
    if os.environ["MINE"] == f"mine {rank}":
        raise ValueError(f"I am {rank}")


def test_P3_functions_return_values_of_any_size(specs: DefaultLogsSpecs) -> None:
    args = {0: ("x", 30_000_000), 1: ("y", 2)}
    context = start_processes("job", double, args, {0: {}, 1: {}}, specs)
    result = result_of(context)
    assert result.return_values == {0: "x" * 30_000_000, 1: "yy"}
    assert Path(result.stdouts[1]).read_text() == "doubling\n"


def test_P8_a_function_that_raises_is_told_with_its_traceback(specs: DefaultLogsSpecs) -> None:
    envs = {rank: {"MINE": f"mine {rank}"} for rank in range(2)}
    result = result_of(start_processes("job", fail_at, {0: (1,), 1: (1,)}, envs, specs))
    assert 1 in result.failures
    message = result.failures[1].message
    assert isinstance(message, dict)
    assert message["message"] == "ValueError: I am 1"
    assert "in fail_at\n" in message["extraInfo"]["py_callstack"]


def test_a_fork_of_the_caller_needs_nothing_pickled(
    specs: DefaultLogsSpecs, tmp_path: Path
) -> None:
    with open(tmp_path / "open", "w+") as file:
        file.write("shared")
        file.flush()

        def read() -> tuple[str, str | None]:
            return os.pread(file.fileno(), 10, 0).decode(), os.environ.get("MINE")

        envs = {rank: {"MINE": f"mine {rank}"} for rank in range(2)}
        args: dict[int, tuple[()]] = {0: (), 1: ()}
        result = result_of(start_processes("job", read, args, envs, specs, start_method="fork"))
    assert result.return_values == {0: ("shared", "mine 0"), 1: ("shared", "mine 1")}
    assert "MINE" not in os.environ


def test_a_fork_of_the_caller_may_have_a_rank_and_no_job(specs: DefaultLogsSpecs) -> None:
    ranked = start_processes(
        "job", os.getpid, {0: ()}, {0: {"RANK": "0"}}, specs, start_method="fork"
    )
    result = result_of(ranked)
    assert not result.failures
    assert result.return_values == ranked.pids()


def test_a_caller_is_told_about_parameters(tmp_path: Path, specs: DefaultLogsSpecs) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="choose another log_dir"):
        shell(DefaultLogsSpecs(str(tmp_path / "file")), "true")
    context = SubprocessContext("job", "true", {0: ()}, {0: {}}, specs)
    (tmp_path / "logs").rename(tmp_path / "gone")
    with pytest.raises(UsageError, match="choose another log_dir"):
        context.start()
    context.close()


def program(body: str, folder: Path, under: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A program of its own that starts processes."""
    script = folder / "program.py"
    script.write_text(
        "import os, signal, sys\n"
        "from rallypoint.elastic.multiprocessing import *\n"
        f"specs = DefaultLogsSpecs({str(folder / 'logs')!r}, tee=Std.OUT)\n" + body
    )
    return processes.start(
        [*under, sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def all_said(running: subprocess.Popen[str]) -> tuple[str, str]:
    """What it wrote until its end, which must come."""
    try:
        return running.communicate(timeout=LIMIT_S)
    finally:
        running.kill()


SIGNALLED = """
context = start_processes("job", "sleep", {0: ("600",)}, {0: {}}, specs)
try:
    print(context.pids()[0], flush=True)
    context.wait()
except SignalException as error:
    context.close(error.sigval)
    alive = os.path.exists(f"/proc/{context.pids()[0]}")
    print(error.sigval.name, context.wait(0).is_failed(), alive, flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether that process has a handler for this signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_raised_where_it_is_waited(tmp_path: Path, number: signal.Signals) -> None:
    with program(SIGNALLED, tmp_path) as running:
        assert running.stdout is not None
        assert running.stdout.readline().strip().isdecimal()
        eventually(lambda: catches(running.pid, signal.SIGTERM), "its wait")
        running.send_signal(number)
        said, complaint = all_said(running)
        assert said == f"{number.name} False False\n", complaint
        # The usual disposition is back.
        assert running.returncode == -signal.SIGTERM


SIGNALLED_WITHIN_A_LOCK = """
import concurrent.futures._base, threading
left = NUMBER
def profile(frame, event, arg):
    global left
    if frame.f_code.co_filename in (threading.__file__, concurrent.futures._base.__file__):
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGTERM)
context = start_processes("job", "sleep", {0: ("0.5",)}, {0: {}}, specs)
sys.setprofile(profile)
try:
    context.wait()
except SignalException:
    pass
sys.setprofile(None)
context.close()
print("closed", flush=True)
"""


@pytest.mark.parametrize("number", range(1, 13))
def test_a_signal_in_the_middle_of_a_wait_leaves_nothing_locked(
    tmp_path: Path, number: int
) -> None:
    """It comes at this call or return of a function of `threading`."""
    body = SIGNALLED_WITHIN_A_LOCK.replace("NUMBER", str(number))
    with program(body, tmp_path) as running:
        said, complaint = all_said(running)
    assert said == "closed\n", complaint


LACKS_MEMORY = """
context = start_processes("job", sys.executable, {0: ("-c", "b'x' * (4 << 30)")}, {0: {}}, specs)
print(context.wait().failures[0].message)
context.close()
"""


def test_A7_a_kill_for_lack_of_memory_is_told(tmp_path: Path) -> None:
    with memory_cgroup(300 << 20) as group:
        if group is None:
            pytest.skip("no memory cgroup that this user may make")
        with program(LACKS_MEMORY, tmp_path, under=inside(group)) as running:
            said, complaint = running.communicate(timeout=LIMIT_S)
    assert said.startswith("killed by SIGKILL: out of memory"), complaint


def test_a_killed_program_takes_its_processes_with_it(tmp_path: Path) -> None:
    with program(SIGNALLED, tmp_path) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        assert is_alive(pid)
        running.kill()
    eventually(lambda: not is_alive(pid), "its end")


TEES = """
args = {n: ("-c", "echo hello; echo there") for n in range(2)}
context = start_processes(
    "job", "sh", args, {0: {}, 1: {}}, specs, log_line_prefixes={1: "<one> "},
    duplicate_stdout_filters=["the"],
)
result = context.wait()
context.close()
print(open(result.stdouts[0]).read(), end="", file=sys.stderr)
folder = os.path.dirname(os.path.dirname(result.stdouts[0]))
print(open(os.path.join(folder, "filtered_stdout.log")).read(), end="", file=sys.stderr)
"""


def test_P6_teed_lines_have_a_prefix(tmp_path: Path) -> None:
    with program(TEES, tmp_path) as running:
        said, copies = running.communicate(timeout=LIMIT_S)
    expected = ["<one> hello", "<one> there", "[job0]:hello", "[job0]:there"]
    assert sorted(said.splitlines()) == expected
    assert copies.startswith("hello\nthere\n")
    assert copies.count("there") == 3


def test_P6_teed_lines_reach_the_stream_objects_of_the_program(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    specs = DefaultLogsSpecs(str(tmp_path / "logs"), tee=Std.ALL)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        context = shell(specs, "echo sn\u00f6; echo complaint >&2")
    assert result_of(context).failures == {}
    assert out.getvalue() == "[job0]:sn\u00f6\n"
    assert err.getvalue() == "[job0]:complaint\n"


def test_P6_a_stream_object_that_fails_does_the_processes_no_harm(tmp_path: Path) -> None:
    class Failing(io.StringIO):
        def write(self, text: str) -> int:
            super().write(text)
            raise ValueError("the notebook has gone")

    out = Failing()
    specs = DefaultLogsSpecs(str(tmp_path / "logs"), tee=Std.OUT)
    with contextlib.redirect_stdout(out):
        context = shell(specs, "echo first; echo second")
    assert result_of(context).failures == {}
    assert out.getvalue() == "[job0]:first\n[job0]:second\n"


REDIRECTS = """
import ctypes
from rallypoint.elastic.multiprocessing import redirect, redirect_stdout, redirect_stderr
print("before")
with redirect_stdout("out"), redirect_stderr("err"):
    print("python")
    ctypes.CDLL(None).puts(b"C")
    os.system("echo child; echo complaint >&2")
    with redirect(std="stdout", to_file="inner"), redirect("stderr", "inner err"):
        print("inner")
        os.system("echo complaint of it >&2")
print("after")
"""


def test_a_stream_of_our_own_is_redirected_whoever_writes(tmp_path: Path) -> None:
    with program(REDIRECTS, tmp_path) as running:
        said, complaint = running.communicate(timeout=LIMIT_S)
    assert (said, complaint) == ("before\nafter\n", "")
    assert sorted((tmp_path / "out").read_text().split()) == ["C", "child", "python"]
    assert (tmp_path / "err").read_text() == "complaint\n"
    assert (tmp_path / "inner").read_text() == "inner\n"
    assert (tmp_path / "inner err").read_text() == "complaint of it\n"
    with pytest.raises(ParameterError, match="std='stdin': needs 'stdout' or 'stderr'"):
        redirect("stdin", str(tmp_path / "other"))
