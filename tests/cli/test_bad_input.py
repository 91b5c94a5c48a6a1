"""Mistakes of a person and of a machine: one line that says the fix, an exit code, nothing left."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from tests.harness.commands import is_one_line_with
from tests.harness.one_agent import agent, ended, environment, eventually, marked
from tests.harness.prepared import processes
from tests.harness.small_disk import mounted
from tests.harness.unprivileged import become_somebody

from rallypoint.cli.main import main

WORKER = "tell('ran')"
TWO = ("--nnodes=2", "--rdzv-id=x")
SEE = "(see rallypoint run --help)"

# Words of the command line, and what the line must contain. tests/cli/test_option_mistakes.py has
# the line of each other option that is wrong.
COMMANDS: list[tuple[list[str], list[str]]] = [
    (["--nproc-per-node=two", "w.py"], ["two", "number"]),
    (["--max-restart=2", "--max-restarts=-1", "w.py"], ["-1"]),
    (["--nnodes=1000000", "--rdzv-endpoint=127.0.0.1:1", "w.py"], ["100000"]),
    ([], ["script is missing"]),
    (["missing.py"], ["missing.py", "no such file"]),
    ([""], ["'': the script's name is empty"]),
    (["--no-python", ""], ["'': the program's name is empty"]),
    (["sh", "w.py"], ["sh: a program, not a Python script", SEE]),
    (["--rdzv-id=\udcff", "w.py"], ["--rdzv-id '\\xff'", "printable"]),
    (["--role=a\udc80", "w.py"], ["--role 'a\\x80'", "printable"]),
    (["--node-id=\udcff", "w.py"], ["--node-id '\\xff'", "printable"]),
    (["--tee=0:1,7:3", "w.py"], ["--tee 0:1,7:3", "no local rank 7", "1 worker", SEE]),
    (["--redirects=1:1", "w.py"], ["--redirects 1:1", "no local rank 1", SEE]),
    (["folder"], ["folder", "directory"]),
    (["--no-python", "folder"], ["folder", "directory"]),
    (["--no-python", "./plain"], ["./plain", "chmod +x"]),
    (["--no-python", "no-such-program"], ["no-such-program", "PATH"]),
    ([*TWO, "--rdzv-endpoint=127.0.0.1:99999", "w.py"], ["99999"]),
    (["--exit-code=odd=3", "w.py"], ["odd"]),
    (["miss\ning.py"], ["'miss\\ning.py': no such file"]),
    (["--no-python", "plain"], ["./plain"]),
    (["--token-fd=300", "w.py"], ["--token-fd 300", "Bad file descriptor", "300<FILE"]),
    (["--token-fd=x", "w.py"], ["--token-fd x", "number"]),
    (["--token-fd=3", "--insecure", "w.py"], ["--token-fd 3: has no effect with --insecure"]),
    (["--token-fd=3", "--token-file=plain", "w.py"], ["--token-fd 3", "--token-file plain too"]),
]
# What is found when the job begins.
OF_AN_AGENT: list[tuple[list[str], list[str]]] = [
    (["missing.py"], ["missing.py", "no such file"]),
    (["--log-dir=plain", "w.py"], ["plain"]),
    (["--log-dir=plain/\n\x1b[2J", "w.py"], ["plain/\\n\\x1b[2J"]),
    (["--token-file=plain", *TWO, "--rdzv-endpoint=127.0.0.1:1", "w.py"], ["plain", "chmod"]),
]


@pytest.mark.parametrize(
    ("words", "parts"), COMMANDS, ids=[ascii(words)[1:-1] for words, _ in COMMANDS]
)
def test_a_mistake_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    parts: list[str],
) -> None:
    """Before any process is started: the command runs in this one."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").write_text("echo no\n")
    (tmp_path / "w.py").write_text("print('ran')")
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("RALLYPOINT_", "PET_"))]:
        monkeypatch.delenv(name)
    for name, place in {"HOME": tmp_path, "TMPDIR": tmp_path / "tmp"}.items():
        monkeypatch.setenv(name, str(place))
    monkeypatch.setattr("os.fork", None)
    assert main(["run", *words]) == 2
    written = capfd.readouterr()
    assert is_one_line_with(written.err, *parts)
    assert written.out == ""
    assert sorted(os.listdir(tmp_path)) == ["folder", "plain", "tmp", "w.py"]
    assert not os.listdir(tmp_path / "tmp"), "temporary files are left"


@pytest.mark.parametrize(
    ("words", "parts"), OF_AN_AGENT, ids=[ascii(words)[1:-1] for words, _ in OF_AN_AGENT]
)
def test_a_mistake_is_one_line_of_an_agent(
    tmp_path: Path, words: list[str], parts: list[str]
) -> None:
    (tmp_path / "plain").write_text("echo no\n")
    (tmp_path / "w.py").write_text("print('ran')")
    run = ended(agent(tmp_path, *words), 2)
    assert is_one_line_with(run.err, *parts)
    assert run.out == ""


def test_what_can_not_be_printed_is_shown_in_quotes(tmp_path: Path) -> None:
    cases = {"\udcff:1": r"'\xff:1'", "a\x1b[2J": r"'a\x1b[2J'", "a\nb": r"'a\nb'"}
    for given, shown in cases.items():
        run = ended(agent(tmp_path, "--nnodes=2", "--rdzv-endpoint", given, program=WORKER), 2)
        assert is_one_line_with(run.err, f"--rdzv-endpoint {shown}: needs a host name")
        assert not run.told("ran")


def test_an_endpoint_that_is_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        where = f"--master-port={port}"
        run = ended(agent(tmp_path, "--nnodes=1", "--node-rank=0", where, program=WORKER), 2)
    assert is_one_line_with(run.err, f"127.0.0.1:{port}", "in use")
    assert not run.told("ran")


def test_a_name_that_does_not_resolve(tmp_path: Path) -> None:
    """It is waited for, since names of pods appear late; then it is one more line, and 75."""
    where = "--rdzv-endpoint=no-such-host.invalid:29400"
    run = ended(agent(tmp_path, *TWO, where, "--rdzv-conf=join_timeout=1", program=WORKER), 75)
    assert "Traceback" not in run.err
    *before, last = run.err.splitlines()
    assert "no-such-host.invalid" in last
    assert len(before) <= 1
    assert not run.told("ran")


def test_several_nodes_need_a_place_to_meet(tmp_path: Path) -> None:
    """Here the fix is a choice of two command lines, each on a line that can be copied."""
    run = ended(agent(tmp_path, "--nnodes=2", program=WORKER), 2)
    assert "\n    rallypoint run --nnodes 2 --rdzv-endpoint HOST:29400 ...\n" in run.err
    assert not run.told("ran")


def fill(path: Path) -> None:
    """Write until the disk is full."""
    number = 0
    with path.open("wb", 0) as file:
        while not number:
            try:
                file.write(bytes(4096))
            except OSError as error:
                number = error.errno or 0
    assert number == errno.ENOSPC


def test_a_full_disk_under_the_log_directory(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        fill(disk / "filler")
        run = ended(agent(tmp_path, f"--log-dir={disk}/logs", "--tee=3", program=WORKER), 75)
        assert is_one_line_with(run.err, str(disk), "No space left", "free space")
        assert not run.told("ran")


FILLS_ITS_LOG = "while True: print('x' * 4000, flush=True)"


def test_a_worker_that_fails_since_its_log_file_is_full_is_said_to(tmp_path: Path) -> None:
    """It can't write its error anywhere: both streams go to that file system."""
    with mounted(tmp_path / "disk", "size=64k") as disk:
        options = (f"--log-dir={disk}/logs", "--redirects=3")
        run = ended(agent(tmp_path, *options, program=FILLS_ITS_LOG), 1)
        said = f"can't write logs under {disk}/logs/"
        reason = "No space left on device: free space there or choose another --log-dir"
        lines = run.err.splitlines()
        assert [line for line in lines if f": {said}" in line and line.endswith(reason)]
        assert [line for line in lines if line.startswith(f"    error: {said}")]


def test_a_read_only_log_directory(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "ro") as disk:
        run = ended(agent(tmp_path, f"--log-dir={disk}", program=WORKER), 75)
        assert is_one_line_with(run.err, str(disk), "Read-only", "--log-dir")


@pytest.mark.parametrize("home", ["/proc/no/home", ""])
def test_a_home_that_can_not_be_written_is_no_harm_to_a_job_of_one_node(
    tmp_path: Path, home: str
) -> None:
    run = ended(agent(tmp_path, program=WORKER, env={"HOME": home}), 0)
    assert run.out == "ran\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(tmp_path: Path, closed: str) -> None:
    """A worker finds the null device in their place, and the job runs."""
    program = "import os\nfor fd in (0, 1, 2): os.fstat(fd)\nopen('ran', 'w').write('yes')"
    under = ("sh", "-c", f'exec "$@" {closed}', "sh")
    ended(agent(tmp_path, program=program, under=under), 0)
    assert (tmp_path / "ran").read_text() == "yes"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("words", ["--help", "--version", "run --help", "token"])
def test_an_answer_that_can_not_be_written_is_one_line(tmp_path: Path, words: str) -> None:
    command = [sys.executable, "-m", "rallypoint", *words.split()]
    env = environment(tmp_path, "no agent")
    with open("/dev/full", "wb") as full:
        ran = processes.run(command, env=env, stdout=full, stderr=subprocess.PIPE)
    assert ran.returncode == 75
    assert ran.stderr == "rallypoint: stdout can't be written: No space left on device\n"
    read, write = os.pipe()
    os.close(read)
    ran = processes.run(command, env=env, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (ran.returncode, ran.stderr) == (0, ""), "as in `rallypoint --help | head -1`"


def test_a_reader_that_goes_away_ends_nothing_but_its_pipe(tmp_path: Path) -> None:
    """As in `rallypoint run ... 2>&1 | head -1`."""
    mark = uuid.uuid4().hex
    program = tmp_path / "worker.py"
    program.write_text(
        "import os, time; os.write(1, b'x')\n"
        f"while not os.path.exists({str(tmp_path / 'closed')!r}): time.sleep(0.01)\n"
        "print('y')"
    )
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "rallypoint", "run", str(program)],
            env=environment(tmp_path, mark),
            stdout=writer,
            stderr=writer,
        )
    finally:
        os.close(writer)
    try:
        assert os.read(reader, 100) == b"x"
    finally:
        os.close(reader)
        (tmp_path / "closed").touch()
        assert process.wait(30) == 0  # The worker goes on: what it prints is lost.
    eventually(lambda: not marked(mark), "nothing left")


def limit_processes(count: int) -> tuple[str, ...]:
    """So many for the agent's user, who is not root: that one has no such limit."""
    become = become_somebody()
    if not become and count > 1:
        pytest.skip("how many processes this user has is not known")
    return (*become, "prlimit", f"--nproc={count}")


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_machine_without_a_process_to_spare(tmp_path: Path, count: int) -> None:
    """The guard, the relay, the thread that looks a name up, the second worker."""
    under, env = limit_processes(count), {"OMP_NUM_THREADS": "1"}
    options = ("--nproc-per-node=2", "--max-restarts=1")
    run = ended(agent(tmp_path, *options, program=WORKER, under=under, env=env), 75)
    assert is_one_line_with(run.err, "ulimit -u")
    # The first worker may have run for a moment when there is none for the second one.
    assert count == 4 or not run.told("ran")


def test_a_guard_that_can_not_be_replaced_ends_the_job_and_all_its_processes(
    tmp_path: Path,
) -> None:
    program = "import os, time\nif os.fork() == 0: os.setpgid(0, 0)\n"
    program += "tell('pid', os.getpid()); time.sleep(600)"
    *become, prlimit, _ = under = limit_processes(1000)
    with agent(tmp_path, program=program, under=under) as run:
        run.wait_told("pid", 2)
        subprocess.run([*become, prlimit, f"--pid={run.pid}", "--nproc=1"], check=True)
        os.kill(run.named("worker-guard")[0], signal.SIGKILL)
        assert run.wait() == 75, run.err
    assert is_one_line_with(run.err, "can't start a process", "ulimit -u")


@pytest.mark.parametrize(("full", "why"), [(True, "No space left"), (False, "Broken pipe")])
def test_worker_output_that_nobody_takes_is_told_once(tmp_path: Path, full: bool, why: str) -> None:
    to_full, to_nobody = '"$@" >/dev/full; echo $? >code', '{ "$@"; echo $? >code; } | true'
    program = "for n in range(20): print('lost', n, flush=True)"
    under = ("sh", "-c", to_full if full else to_nobody, "sh")
    run = ended(agent(tmp_path, "--output=prefix", program=program, under=under), 0)
    assert (tmp_path / "code").read_text() == "0\n"
    told = [line for line in run.said if "worker output can't be written to stdout" in line]
    assert len(told) == 1, run.err
    assert why in told[0]
    assert "lost output is not written again" in told[0]


def test_a_log_directory_whose_name_is_no_text(tmp_path: Path) -> None:
    options = ("--log-dir=\udcff", "--tee=3", "--log-format=json")
    run = ended(agent(tmp_path, *options, program="raise SystemExit('boom')"), 1)
    verdict = json.loads(run.err.splitlines()[-1])
    assert verdict["cause"]["message"].endswith("boom")
    assert "\\xff" in verdict["cause"]["log_file"]
    (log,) = (tmp_path / "\udcff").rglob("stderr.log")
    assert log.read_text() == "boom\n"
