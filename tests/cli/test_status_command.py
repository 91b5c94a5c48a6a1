"""`rallypoint status`: what a job does, from any machine that has its token."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster, free_port, wait_until
from tests.harness.commands import (
    LOOKS,
    ask,
    is_refused,
    rallypoint,
    start,
    wrong_token,
)
from tests.harness.limits import patience

STEPS = "from rallypoint import worker; worker.progress({})"
LOOPS = """
from rallypoint import worker
for step in range({}):
    worker.progress(step)
    time.sleep(0.01)
"""
LIMIT_S = 60.0


def view_of(cluster: Cluster) -> dict[str, object]:
    done = ask(cluster, "status", "--json")
    assert done.returncode == 0, done.stderr
    view: dict[str, object] = json.loads(done.stdout)
    return view


@pytest.mark.parametrize("serves", [False, True], ids=["embedded", "serve"])
def test_V1_status_shows_what_a_job_does_and_how_it_came_to_that(
    cluster: Cluster, serves: bool
) -> None:
    if serves:
        cluster.serve()
    a, b = cluster.running("a", "b", hosts=None if serves else True, max_restarts=2)
    cluster.order(LOOPS.format(30), round=0)
    wait_until(lambda: view_of(cluster)["step"] == 29, "the last step")
    cluster.order("raise RuntimeError('loss is NaN')", round=0, node="b")
    cluster.wait_workers(2, round=1)
    cluster.order(STEPS.format(10), round=1)
    wait_until(lambda: view_of(cluster)["step"] == 10, "a step of the next round")
    done = ask(cluster, "status")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert re.fullmatch(r"job job: catching up for \d+ s, round 1 \(\d\d:\d\d:\d\d\)", lines[0])
    text = done.stdout
    assert "ended by failure: rank 1 (node b, local rank 0) exited with code 1" in text
    assert "| RuntimeError: loss is NaN" in text
    assert "1 of 2 restarts used; 1 fault" in text
    assert "2 of 1 to 2 in the round, 2 workers" in text
    assert "running: a, b" in text
    view = view_of(cluster)
    spent = view["goodput"]["parts"]  # type: ignore[index]
    assert sum(part["seconds"] for part in spent) == pytest.approx(
        view["goodput"]["wall_s"]  # type: ignore[index]
    )
    assert view["furthest_step"] == 29
    cluster.end_well(a, b)


def test_V1_while_another_worker_of_the_node_stops_status_has_the_traceback(
    cluster: Cluster,
) -> None:
    (a,) = cluster.agents("a", nproc_per_node=2, max_restarts=1, restart_grace=60, nnodes="1")
    cluster.wait_workers(2, round=0)
    cluster.order("signal.signal(signal.SIGTERM, signal.SIG_IGN); tell(ready=1)", round=0, rank=0)
    wait_until(lambda: len(a.workers()) == 3, "the worker to ignore SIGTERM")
    cluster.order("raise RuntimeError('loss is NaN')", round=0, rank=1)
    wait_until(
        lambda: "| RuntimeError: loss is NaN" in ask(cluster, "status").stdout, "the traceback"
    )
    view = view_of(cluster)
    assert view["state"] == "stopping"
    assert view["past"][-1]["cause"]["rank"] == 1  # type: ignore[index]
    os.kill(cluster.workers(0)[0].pid, signal.SIGKILL)
    cluster.wait_workers(2, round=1)
    cluster.end_well(a)


def test_V1_status_finds_a_job_on_this_machine_by_itself(cluster: Cluster) -> None:
    cluster.options |= {"rdzv_id": f"mine-{os.getpid()}-{cluster.port}"}
    (a,) = cluster.agents("a", nnodes="1", history="none")
    job = str(cluster.options["rdzv_id"])
    cluster.wait_workers(1)

    def runs() -> bool:
        found = rallypoint(cluster, "status", "--job", job)
        assert found.returncode == 0, found.stderr
        return found.stdout.startswith(f"job {job}: running for ")

    wait_until(runs, "the job to be found, and to run")
    mistyped = rallypoint(cluster, "status", "--job", f"{job}0")
    assert mistyped.returncode == 75
    assert mistyped.stderr == (
        f"rallypoint: job {job}0 does not run on this machine; did you mean --job {job}?\n"
    )
    cluster.env["RALLYPOINT_TOKEN"] = "ab" * 32
    elsewhere = rallypoint(cluster, "status", "--job", job)
    assert elsewhere.returncode == 2
    assert elsewhere.stderr.startswith(
        f"rallypoint status: job {job} runs here with another token than that of "
        "RALLYPOINT_TOKEN: unset RALLYPOINT_TOKEN in this shell"
    )
    del cluster.env["RALLYPOINT_TOKEN"]
    cluster.end_well(a)
    gone = rallypoint(cluster, "status", "--job", job)
    assert gone.returncode == 75
    assert gone.stderr == (
        f"rallypoint: job {job} does not run on this machine: give the job's --rdzv-endpoint "
        "HOST[:PORT]\n"
    )


def test_a_job_of_one_node_that_nobody_else_can_find_is_found_by_its_user(
    cluster: Cluster,
) -> None:
    """It has a token of its own, and no port that anybody has chosen."""
    name = f"alone-{os.getpid()}-{cluster.port}"
    cluster.options |= {"rdzv_endpoint": None, "rdzv_conf": None, "nnodes": "1", "rdzv_id": name}
    [a] = cluster.running("a", hosts=None, round=None)
    found = rallypoint(cluster, "status", "--job", name)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f"job {name}: ")
    (note,) = cluster.temp.glob("rallypoint-agent-*/job")
    assert note.stat().st_mode & 0o777 == 0o600
    assert note.parent.stat().st_mode & 0o777 == 0o700
    cluster.end_well(a)
    assert not list(cluster.temp.glob("rallypoint-agent-*"))


def test_a_coordinator_of_many_jobs_shows_them_in_a_table(cluster: Cluster) -> None:
    cluster.serve()
    a = cluster.agent("a", nnodes="1", rdzv_id="first")
    b = cluster.agent("b", nnodes="2", rdzv_id="second")
    wait_until(lambda: "second" in table(cluster), "both jobs")
    wait_until(lambda: "running" in table(cluster), "the first job to run")
    head, first, second = table(cluster).splitlines()
    *names, clock = head.split()
    assert names == ["JOB", "STATE", "FOR", "ROUND", "NODES", "WORKERS", "STEP", "USEFUL"]
    assert re.fullmatch(r"\(\d\d:\d\d:\d\d\)", clock)
    assert re.match(r"first +running +\d+ s +0 +1 +1 +- +- ", first + " ")
    assert re.match(r"second +waiting .* 1 more node: 1 of 2 nodes are here", second)
    one = ask(cluster, "status", job="second")
    assert "waits for   1 more node: 1 of 2 nodes are here" in one.stdout
    none = ask(cluster, "status", job="third")
    assert none.returncode == 2
    assert "does not host job 'third'" in none.stderr
    assert len(none.stderr.splitlines()) == 1
    b.signal(signal.SIGINT)
    b.wait_exit()
    cluster.end_well(a)
    over = ask(cluster, "status", job="first")
    assert over.returncode == 0
    assert re.match(r"job first: succeeded \d+ s ago, round 0: all workers exited", over.stdout)


def test_a_directory_of_jobs_is_shown_as_a_table(cluster: Cluster, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    cluster.options |= {"rdzv_backend": "file", "rdzv_endpoint": str(shared), "nnodes": "1"}
    cluster.options |= {"rdzv_conf": None}
    a = cluster.agent("a", rdzv_id="first")
    b = cluster.agent("b", rdzv_id="second.one")
    wait_until(lambda: len(re.findall("running", table(cluster))) == 2, "both jobs to run")
    assert [line.split()[0] for line in table(cluster).splitlines()[1:]] == ["first", "second.one"]
    either = rallypoint(cluster, "events", shared)
    assert either.returncode == 2
    assert "several jobs are there (first, second.one): choose one by --job ID" in either.stderr
    cluster.end_well(a, b)
    _, first, second = table(cluster).splitlines()
    assert re.match(r"first +succeeded .* all workers exited with code 0", first)
    assert re.match(r"second.one +succeeded ", second)


def table(cluster: Cluster) -> str:
    done = rallypoint(cluster, "status", str(cluster.options["rdzv_endpoint"]))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_status_names_what_is_wrong_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    (a,) = cluster.running("a", nnodes="1", rdzv_id="job", history="none", round=None)
    other_token = ask(cluster, "status", "--token-file", wrong_token(tmp_path))
    unknown_job = ask(cluster, "status", job="another")
    nobody = rallypoint(cluster, "status", f"127.0.0.1:{free_port()}", "--job", "job")
    too_many = rallypoint(cluster, "status", "one", "two")
    its_name = rallypoint(cluster, "status", "train-8.invalid")
    no_directory = rallypoint(
        cluster, "status", "/does/not/exist", "--rdzv-backend", "file", "--job", "job"
    )
    cluster.end_well(a)
    gone = ask(cluster, "status")
    for failed, code, said in (
        (other_token, 2, "wrong token for job 'job'"),
        (unknown_job, 2, "wrong token for job 'another', or another job uses this endpoint"),
        (nobody, 75, "can't reach the coordinator"),
        (too_many, 2, "two: unexpected"),
        (
            its_name,
            75,
            "; if train-8.invalid is the name of the job, give --job train-8.invalid; if ",
        ),
        (its_name, 75, "if it is a node, give the name of its job (--job ID); nothing of it"),
        (no_directory, 2, "/does/not/exist: there is no such directory"),
        (gone, 75, "can't reach the coordinator"),
    ):
        is_refused(failed, code, said)
    assert "--rdzv-id" in unknown_job.stderr


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)


@pytest.mark.executed
def test_status_watch_redraws_until_the_job_ends(
    cluster: Cluster, terminal: tuple[int, int]
) -> None:
    ours, theirs = terminal
    (a,) = cluster.running("a", nnodes="1", round=None)
    wait_until(lambda: view_of(cluster)["state"] == "running", "the job to run")
    cluster.env |= {"TERM": "xterm", "NO_COLOR": ""}
    watching = start(cluster, "status", "--watch", stdout=theirs, stderr=None)
    os.close(theirs)
    seen = b""
    while seen.count(b"\x1b[H\x1b[2J") < 2:
        seen += os.read(ours, 65536)
    cluster.end_well(a)
    try:
        while data := os.read(ours, 65536):
            seen += data
    except OSError:
        pass  # The other end has been closed.
    assert watching.wait(patience(LIMIT_S)) == 0
    assert re.search(rb"job job: running for \d+ s, round 0 \(\d\d:\d\d:\d\d\)", plain(seen))
    over = b"job job: succeeded 0 s ago, round 0: all workers exited with code 0"
    assert over in plain(seen)
    # A terminal has colours.
    assert b"job job: \x1b[32mrunning\x1b[0m for" in seen


def plain(seen: bytes) -> bytes:
    """Without colours."""
    return re.sub(rb"\x1b\[\d*m", b"", seen)


def resize(terminal: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 12, columns, 0, 0))


def test_status_watch_fits_the_terminal_also_a_resized_one_and_ctrl_c_ends_it_quietly(
    cluster: Cluster, terminal: tuple[int, int]
) -> None:
    ours, theirs = terminal
    cluster.serve()
    agents = cluster.agents(*(f"a-node-of-a-long-name-{n}" for n in "abc"), nnodes="3", hosts=None)
    cluster.wait_workers(3)
    resize(ours, 200)
    watch = start(cluster, "status", "--watch", stdout=theirs)
    os.close(theirs)
    seen = b""
    names = b"a-node-of-a-long-name-a, a-node-of-a-long-name-b, a-node-of-a-long-name-c"
    while b"running: " + names not in seen:
        seen += os.read(ours, 65536)
    resize(ours, 60)
    seen = b""
    while not re.search(rb"running: a-node-of-a-long-name-a,\r\n {14}a-node", seen):
        seen += os.read(ours, 65536)
    page = seen.rpartition(b"\x1b[H\x1b[2J")[2].decode().split("\r\n")
    assert max(map(len, page)) <= 60
    assert len(page) <= 12
    watch.send_signal(signal.SIGINT)
    _, said = watch.communicate(timeout=patience(LIMIT_S))
    assert (watch.returncode, said) == (130, "")
    cluster.end_well(*agents)


def test_status_watch_ends_when_its_reader_leaves(cluster: Cluster) -> None:
    (a,) = cluster.running("a", nnodes="1", round=None)
    ours, theirs = os.pipe()
    watch = start(cluster, "status", "--watch", stdout=theirs)
    os.close(theirs)
    assert os.read(ours, 65536).startswith(b"job job: ")
    os.close(ours)
    _, said = watch.communicate(timeout=patience(LIMIT_S))
    assert (watch.returncode, said) == (0, "")
    cluster.end_well(a)


def test_status_watch_finds_the_next_leader_and_says_how_the_job_ended(
    cluster: Cluster, tmp_path: Path
) -> None:
    directory = tmp_path / "jobs"
    directory.mkdir()
    cluster.options |= {"rdzv_backend": "file", "rdzv_endpoint": str(directory)}
    [first] = cluster.running("a", hosts=None, round=None)
    second = cluster.agent("b")
    cluster.wait_workers(2)
    with (tmp_path / "seen").open("wb") as seen:
        watch = start(cluster, "status", "--watch", stdout=seen)
    text = (tmp_path / "seen").read_text
    wait_until(lambda: "2 of 1 to 2 in the round" in text(), "both nodes to be seen")
    first.kill()
    with (tmp_path / "lines").open("wb") as out:
        begun = start(cluster, "logs", "-f", stdout=out)
    wait_until(lambda: "1 of 1 to 2 in the round" in text(), "the next leader to be seen")
    cluster.order("print('epoch 1', file=sys.stderr, flush=True)")
    wait_until(lambda: "epoch 1" in (tmp_path / "lines").read_text(), "a line of the worker")
    cluster.end_well(second)
    assert begun.communicate(timeout=patience(LIMIT_S))[1].endswith("the job has ended\n")
    assert begun.returncode == 0
    _, said = watch.communicate(timeout=patience(LIMIT_S))
    assert (watch.returncode, said) == (0, LOOKS)
    assert "job job: succeeded 0 s ago" in text()
    over = ask(cluster, "status")
    assert over.returncode == 0, over.stderr
    head, line, *_ = over.stdout.splitlines()
    assert head.startswith("the job has ended; this is kept of it on this machine: ~/")
    assert line.endswith(", round 2: all workers exited with code 0")
    cluster.env["RALLYPOINT_STATE_DIR"] = str(tmp_path / "none")
    over = ask(cluster, "status")
    ended, where = over.stdout.rstrip().split(" (", 1)
    assert ended == "job job: the job has ended: all workers exited with code 0"
    assert re.fullmatch(
        r"node [ab] led it last, and keeps the rest: use this command there\)", where
    )


def test_a_job_on_this_machine_that_does_not_answer_holds_up_no_other(cluster: Cluster) -> None:
    mine, other = (f"{name}-{os.getpid()}-{cluster.port}" for name in ("mine", "other"))
    a = cluster.agent("a", nnodes="1", rdzv_id=mine)
    b = cluster.agent("b", nnodes="1", rdzv_id=other, rdzv_endpoint=f"127.0.0.1:{free_port()}")
    cluster.wait_workers(2)

    def row(job: str) -> str:
        done = rallypoint(cluster, "status", "--all")
        assert done.returncode == 0, done.stderr
        return next((line for line in done.stdout.splitlines() if line.startswith(job)), "")

    wait_until(lambda: "running" in row(mine) and "running" in row(other), "both jobs")
    b.pause()
    wait_until(lambda: "no answer" in row(other), "the job of the paused agent")
    assert "did not answer within 5 s" in row(other)
    assert "running" in row(mine)
    b.resume()
    cluster.end_well(a, b)


def test_a_job_without_a_token_names_the_option(cluster: Cluster) -> None:
    cluster.make_token()
    (a,) = cluster.running("a", nnodes="1", insecure=True, round=None)
    endpoint = f"127.0.0.1:{cluster.port}"
    refused, answered = ask(cluster, "status"), ask(cluster, "status", "--insecure")
    unnamed = rallypoint(cluster, "nodes", endpoint, "--insecure")
    cluster.end_well(a)
    assert (unnamed.returncode, unnamed.stdout) == (0, "no machine is held back\n")
    assert refused.returncode == 2
    assert refused.stderr == (
        f"rallypoint status: the job at {endpoint} runs without a token: add --insecure\n"
    )
    assert answered.returncode == 0
