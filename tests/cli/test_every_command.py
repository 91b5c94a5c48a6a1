"""Each command about a job in each situation in which a person may be: a coordinator of a hundred
jobs, no coordinator, a wrong token, a job that has ended or ends meanwhile, a reader that leaves, a
terminal of any width."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.harness.cluster import Cluster, free_port, wait_until
from tests.harness.commands import RALLYPOINT, WISHES, is_refused, rallypoint, wrong_token
from tests.harness.light_jobs import NODE, STUCK, LightJobs
from tests.harness.limits import patience
from tests.harness.prepared import processes
from tests.harness.terminal import Terminal

from rallypoint.cli.watch.asking.reach import Asking, jobs_of
from rallypoint.cli.watch.status_text import LINES_MAX
from rallypoint.coordinator.client.token import find_token
from rallypoint.coordinator.connection import dial
from rallypoint.core.watch.history import HistoryEntry
from rallypoint.core.watch.history_file import Begin, as_object
from rallypoint.core.watch.job_view import JobLine
from rallypoint.errors import UsageError
from rallypoint.wire.address import Address

LIMIT_S = 60.0
QUESTIONS = {
    "status": r"job {job}: running for ",
    "events": r"\d\d:\d\d:\d\d   node node-0 joined",
    "logs": r"\[0\] step 16$",
    "stacks": r"rank 0 \(node-0\):$",
    "nodes": r"no machine is held back$",
}
COMMANDS = QUESTIONS | WISHES
FOLLOWERS = (("status", "--watch"), ("events", "-f"), ("logs", "-f"))
NUMBER = {name: number for number, name in enumerate(COMMANDS)}
FITS = ("status", "stacks")
"""No line of these is wider than the terminal."""


class Place(NamedTuple):
    """A coordinator, and who asks it."""

    cluster: Cluster
    endpoint: str

    def line(self, name: str, *words: str, job: str = "") -> list[str]:
        """The command."""
        where = (
            ["--rdzv-endpoint", self.endpoint] if name in ("logs", "stacks") else [self.endpoint]
        )
        node = [NODE] if name == "drain" else []
        return [*RALLYPOINT, name, *node, *where, *(["--job", job] if job else []), *words]

    def run(self, name: str, *words: str, job: str = "") -> subprocess.CompletedProcess[str]:
        """Nothing of it is a terminal."""
        line = self.line(name, *words, job=job)
        return rallypoint(self.cluster, *line[len(RALLYPOINT) :])

    def start(self, name: str, *words: str, job: str, stdout: Any) -> subprocess.Popen[Any]:
        """Without waiting for it."""
        line = self.line(name, *words, job=job)
        how = {"stdout": stdout, "stderr": subprocess.PIPE, "text": True}
        return processes.start(line, env=self.cluster.environ(), **how)


def job_of(situation: int, name: str) -> str:
    """One of the hundred that no other test asks for."""
    return f"train-{10 * situation + NUMBER[name]:03}"


ENDED, STUCK_JOB = "train-099", f"{STUCK}-0"
JOBS = [*(f"train-{number:03}" for number in range(99)), ENDED, STUCK_JOB]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Cluster(tmp_path_factory.mktemp("hundred")) as cluster:
        token = cluster.make_token()
        cluster.serve()
        made = Place(cluster, f"127.0.0.1:{cluster.port}")
        with LightJobs(cluster.port, token, JOBS):
            assert made.run("cancel", job=ENDED).returncode == 0
            yield made


@pytest.mark.parametrize("name", COMMANDS)
def test_the_job_that_is_named_answers(place: Place, name: str) -> None:
    job = job_of(0, name)
    done = place.run(name, job=job)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert re.match(COMMANDS[name].format(job=job), lines[0]), lines[0]
    assert len(lines) <= LINES_MAX


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_json(place: Place, name: str) -> None:
    done = place.run(name, "--json", job=job_of(1, name))
    assert (done.returncode, done.stderr) == (0, "")
    for line in done.stdout.splitlines():
        assert isinstance(json.loads(line), list if name == "nodes" else dict)


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_name_there_is_a_table_or_a_line_that_says_what_to_give(
    place: Place, name: str
) -> None:
    done = place.run(name)
    if name != "status":
        is_refused(
            done, 2, f"rallypoint {name}: {place.endpoint}: several jobs are there (stuck-0,"
        )
        assert " more): choose one by --job ID" in done.stderr
        return
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == LINES_MAX
    assert lines[0].startswith("JOB ")
    assert lines[-1].startswith("and 79 more jobs (--all): ")
    assert place.run(name, "--all").stdout.count("\n") == len(JOBS) + 1
    assert len(json.loads(place.run(name, "--json").stdout)) == len(JOBS)


@pytest.mark.parametrize("name", COMMANDS)
def test_mistakes_are_one_line(place: Place, name: str, tmp_path: Path) -> None:
    other = wrong_token(tmp_path)
    job = job_of(2, name)
    other_token = place.run(name, "--token-file", other, job=job)
    is_refused(other_token, 2, f"wrong token for job '{job}', or another job uses this endpoint. ")
    unnamed = place.run(name, "--token-file", other)
    is_refused(unnamed, 2, f"{place.endpoint}: this token opens no job without a name")
    is_refused(place.run(name, job="nope"), 2, "does not host job 'nope': check --rdzv-id")
    nobody = place._replace(endpoint=f"127.0.0.1:{free_port()}")
    is_refused(nobody.run(name, job=job), 75, "can't reach the coordinator at 127.0.0.1:")
    is_refused(place.run(name, "--qqqqqqqq", job=job), 2, "--qqqqqqqq: unknown option (see ")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_job_that_has_ended(place: Place, name: str) -> None:
    done = place.run(name, job=ENDED)
    if name in ("status", "events"):
        assert (done.returncode, done.stderr) == (0, "")
        assert "a person cancelled it (rallypoint cancel)" in done.stdout
    elif name == "nodes":
        assert (done.returncode, done.stdout) == (0, "no machine is held back\n")
    else:
        is_refused(done, 2, "the job has ended: a person cancelled it (rallypoint cancel)")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_reader_that_has_left_and_one_that_there_never_was(place: Place, name: str) -> None:
    """As `| head -n 0`, and as `>&-`."""
    reads, writes = os.pipe()
    os.close(reads)
    left = place.start(name, job=job_of(3, name), stdout=writes)
    os.close(writes)
    _, said = left.communicate(timeout=patience(LIMIT_S))
    assert (left.returncode, said) == (0, "")
    line = [*place.line(name, job=job_of(4, name))]
    closed = processes.run(
        ["sh", "-c", '"$@" >&-', "sh", *line], env=place.cluster.environ(), capture_output=True
    )
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_one_line(place: Place, name: str) -> None:
    with open("/dev/full", "w") as full:
        writing = place.start(name, job=job_of(5, name), stdout=full)
    _, said = writing.communicate(timeout=patience(LIMIT_S))
    assert (writing.returncode, said) == (
        75,
        "rallypoint: stdout can't be written: No space left on device\n",
    )


def at_a_terminal(place: Place, columns: int, name: str, *words: str, job: str) -> list[str]:
    """What the terminal shows. 0 columns: it does not know its size."""
    ours, theirs = pty.openpty()
    rows = 50 if columns else 0
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    command = place.start(name, *words, job=job, stdout=theirs)
    os.close(theirs)
    seen = b""
    with suppress(OSError):  # The other end has been closed.
        while data := os.read(ours, 65536):
            seen += data
    os.close(ours)
    _, said = command.communicate(timeout=patience(LIMIT_S))
    assert (command.returncode, said) == (0, "")
    wide = Terminal(1000)
    wide.feed(seen)
    return wide.rows


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("situation", "columns"), [(6, 80), (7, 200), (8, 0)])
def test_what_a_terminal_shows_fits(place: Place, name: str, situation: int, columns: int) -> None:
    lines = at_a_terminal(place, columns, name, job=job_of(situation, name))
    assert len(lines) <= LINES_MAX
    assert lines
    if name in FITS:
        assert max(map(len, lines)) <= (columns or 80)


@pytest.mark.parametrize("columns", [80, 200, 0])
def test_the_table_of_jobs_fits(place: Place, columns: int) -> None:
    lines = at_a_terminal(place, columns, "status", job="")
    assert len(lines) == LINES_MAX
    assert max(map(len, lines)) <= (columns or 80)


def tells(path: Path, text: str) -> Callable[[], bool]:
    return lambda: text in path.read_text()


def following(
    place: Place, followers: Sequence[tuple[str, ...]], job: str, folder: Path
) -> list[tuple[subprocess.Popen[Any], Path]]:
    """Commands that write to files and have begun to."""
    found = []
    for name, option in followers:
        path = folder / name
        with path.open("w") as out:
            found.append((place.start(name, option, job=job, stdout=out), path))
    for _, path in found:
        wait_until(lambda path=path: path.read_text(), f"the first lines of {path.name}")  # type: ignore[misc]
    return found


def test_a_job_that_ends_while_it_is_watched(place: Place, tmp_path: Path) -> None:
    job = "train-096"
    watching = following(place, FOLLOWERS, job, tmp_path)
    assert place.run("cancel", job=job).returncode == 0
    said = [process.communicate(timeout=patience(LIMIT_S))[1] for process, _ in watching]
    assert [process.returncode for process, _ in watching] == [0, 0, 0]
    assert said == ["", "", "the job has ended\n"]
    status, events, logs = (path.read_text() for _, path in watching)
    assert re.search(rf"^job {job}: cancelled 0 s ago, round 0: a person", status, re.M)
    assert events.endswith(" job cancelled: a person cancelled it (rallypoint cancel)\n")
    assert logs.endswith("[0] step 39\n")


def test_a_job_that_ends_before_what_a_person_wants_is_done(place: Place, tmp_path: Path) -> None:
    job = STUCK_JOB
    restart = place.start("restart", job=job, stdout=subprocess.PIPE)
    wait_until(lambda: "stopping for" in place.run("status", job=job).stdout, "the round to end")
    late = place.run("restart", "--timeout", "20", job=job)
    is_refused(late, 2, "no workers run now: the job waits for node node-0 to stop")
    assert place.run("cancel", job=job).returncode == 0
    out, said = restart.communicate(timeout=patience(LIMIT_S))
    assert (restart.returncode, said) == (1, "")
    assert out == "the job was cancelled: a person cancelled it (rallypoint cancel)\n"


@pytest.mark.parametrize("name", ["logs", "stacks"])
def test_an_endpoint_that_is_given_twice_is_refused(place: Place, name: str) -> None:
    done = rallypoint(place.cluster, name, "7", place.endpoint, place.endpoint)
    said = f"rallypoint {name}: {place.endpoint}: the endpoint is given already"
    is_refused(done, 2, said)


@pytest.mark.parametrize("name", ["logs", "stacks"])
def test_a_host_without_a_port_is_told_how_it_is_written(place: Place, name: str) -> None:
    done = rallypoint(place.cluster, name, "node-0", "--job", "nowhere")
    assert done.returncode == 75
    assert "to ask the coordinator at host node-0, write node-0:PORT" in done.stderr


def test_all_events_are_all_of_them_however_many(cluster: Cluster, tmp_path: Path) -> None:
    """More than is printed at once."""
    path = tmp_path / "history.jsonl"
    number = range(1, 1001)
    entries = [
        HistoryEntry(one, float(one), "notice", "INFO", 0, f"event {one}: {'x' * 200}", "", False)
        for one in number
    ]
    lines = [json.dumps(as_object(Begin("job", 1, 0.0))), *map(json.dumps, map(as_object, entries))]
    path.write_text("\n".join([*lines, ""]))

    def events(*words: str) -> list[str]:
        done = rallypoint(cluster, "events", path, "--all", *words)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    assert [json.loads(line)["number"] for line in events("--json")] == list(number)
    assert len(events()) == len(number)


@pytest.mark.parametrize("job", ["train-001", "a-job-that-is-not-there"])
def test_F8_the_token_of_one_job_lists_no_other_job(place: Place, job: str, tmp_path: Path) -> None:
    """Whatever the commands ask, what the coordinator answers is about that job alone."""
    whole = find_token(None, None, place.cluster.home, create=False)
    assert whole is not None
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(whole.text_for_job(job))

    async def ask() -> list[JobLine]:
        host, port = place.endpoint.split(":")
        connection = await dial([Address(host, int(port))], job, whole.for_job(job))
        asking = Asking(connection)
        try:
            return await jobs_of(asking)
        except UsageError:
            return []
        finally:
            asking.close()

    assert [line.job for line in asyncio.run(ask())] in ([], [job])
    unnamed = place.run("status", "--token-file", str(file))
    is_refused(unnamed, 2, f"{place.endpoint}: this token opens no job without a name")
    another = place.run("status", "--token-file", str(file), job="train-002")
    is_refused(another, 2, "wrong token for job 'train-002', or another job uses this endpoint. ")
