"""`rallypoint logs`: what the workers of all nodes wrote last, and what they write."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from tests.harness.cluster import Cluster, wait_until
from tests.harness.commands import ask, first_line, is_refused, line_of, start
from tests.harness.limits import patience
from tests.harness.restarted_serve import RestartedServe

from rallypoint.cli.watch.asking.reach import RETRY_S

LIMIT_S = 60.0

COUNTS = """
for number in range(10**6):
    if os.path.exists(ENOUGH): break
    print(f"line {number}", file=sys.stderr, flush=True)
    time.sleep(0.05)
print("the end", file=sys.stderr, flush=True); sys.exit(0)
"""


def shown(cluster: Cluster, *words: str) -> list[str]:
    """The lines, without those in which a worker of the cluster presents itself."""
    done = ask(cluster, "logs", *words)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if "RANK" not in line]


class Following:
    """`rallypoint logs -f`."""

    def __init__(self, cluster: Cluster, *words: str) -> None:
        number = len(list(cluster.folder.glob("follows.*.out")))
        self._out = cluster.folder / f"follows.{number}.out"
        self._err = cluster.folder / f"follows.{number}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = start(cluster, "logs", "-f", *words, stdout=out, stderr=err)

    @property
    def lines(self) -> list[str]:
        return self._out.read_text().splitlines()

    @property
    def said(self) -> str:
        return self._err.read_text()

    def wait_line(self, line: str) -> None:
        wait_until(lambda: line in self.lines, f"{line!r} in {self.lines}")


def says(text: str, stream: str = "stderr") -> str:
    return f"print({text!r}, file=sys.{stream}, flush=True)"


def test_V6_lines_of_all_nodes_are_shown_from_the_relay_and_from_files(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.options |= {"nnodes": "2", "max_restarts": 1}
    files = str(tmp_path / "logs")
    a = cluster.agent("a", 2, hosts=True, redirects="1", log_dir=files)
    b = cluster.agent("b", 2, hosts=False)
    a.wait_event("workers_started")
    # A worker that begins after its orders presents itself last: that line would be the newest.
    wait_until(lambda: len(b.workers(0)) == 2, "the workers of b to present themselves")
    cluster.order(says("epoch 1 done"), round=0)
    cluster.order(says("\x1b[31modd\x1b[0m"), rank=3, round=0)
    cluster.order(says("to stdout", "stdout"), round=0)
    all_of_them = ["[0-3] epoch 1 done", "[0-3] to stdout", "[3] odd"]
    wait_until(lambda: sorted(shown(cluster)) == all_of_them, "the lines of all ranks")
    done = ask(cluster, "logs")
    assert done.stderr == ""
    assert sorted(shown(cluster, "3")) == ["[3] epoch 1 done", "[3] odd", "[3] to stdout"]
    assert len(shown(cluster, "b", "--last", "1")) == 1
    told = [json.loads(line) for line in shown(cluster, "1-2", "--json")]
    assert sorted((one["rank"], one["node"], one["stream"], one["line"]) for one in told) == [
        (1, "a", "stderr", "epoch 1 done"),
        (1, "a", "stdout", "to stdout"),
        (2, "b", "stderr", "epoch 1 done"),
        (2, "b", "stdout", "to stdout"),
    ]
    assert {one["round"] for one in told} == {0}

    from_now, interrupted = Following(cluster, "--last", "0"), Following(cluster, "3")
    interrupted.wait_line("[3] odd")
    cluster.order(says("epoch 2 done"), round=0)
    from_now.wait_line("[0-3] epoch 2 done")
    interrupted.wait_line("[3] epoch 2 done")
    interrupted.process.send_signal(signal.SIGINT)
    assert interrupted.process.wait(patience(LIMIT_S)) == 130
    assert "Traceback" not in interrupted.said
    assert interrupted.said == ""

    cluster.order("raise RuntimeError('loss is NaN')", rank=2, round=0)
    from_now.wait_line("[2] RuntimeError: loss is NaN")
    b.wait_event("workers_started", round=1)
    cluster.order(says("again"), round=1)
    from_now.wait_line("[0-3] again")
    cluster.order(f"{says('last words')}; sys.exit(0)", round=1)
    assert [a.wait_exit(), b.wait_exit()] == [0, 0]
    assert from_now.process.wait(patience(LIMIT_S)) == 0
    assert "[0-3] last words" in from_now.lines, from_now.lines
    assert "epoch 1" not in "\n".join(from_now.lines)
    assert from_now.said.endswith("the job has ended\n")
    gone = ask(cluster, "logs")  # Of which its nodes have kept something.
    assert gone.returncode == 0
    assert "[0-3] last words" in gone.stdout.splitlines()
    assert gone.stderr.startswith("the job has ended; this is kept of it on this machine: ~/")


def test_V6_json_has_as_many_lines_as_are_asked_for_and_says_what_is_left_out(
    cluster: Cluster,
) -> None:
    (a,) = cluster.agents("a", nnodes="1", nproc_per_node=3)
    cluster.wait_workers(3)
    cluster.order("for n in range(9): print(n, file=sys.stderr, flush=True)", round=0)
    wait_until(lambda: shown(cluster, "--last", "1") == ["[0-2] 8"], "the last lines")
    newest = [
        json.loads(line)["line"]
        for line in ask(cluster, "logs", "--json", "--last", "4").stdout.splitlines()
    ]
    assert len(newest) == 4
    follows = Following(cluster, "1", "--json", "--last", "2")
    wait_until(lambda: len(follows.lines) > 1, "the first lines")
    cluster.order(f"{says('more')}", rank=1, round=0)
    wait_until(lambda: "more" in follows.lines[-1], "another line")
    assert [json.loads(line)["line"] for line in follows.lines] == ["7", "8", "more"]
    cluster.order("for n in range(9): print('x' * 99999, file=sys.stderr, flush=True)", rank=1)
    wait_until(lambda: "bytes left out" in follows.said, "what is left out")
    cluster.end_well(a)
    assert follows.process.wait(patience(LIMIT_S)) == 0


def test_what_is_wrong_is_named_in_one_line(cluster: Cluster) -> None:
    (a,) = cluster.running("a", nnodes="1", round=None)
    for failed, code, said in (
        (ask(cluster, "logs", "1"), 2, "there is no rank 1 in round 0; the last is 0"),
        (ask(cluster, "logs", "b"), 2, "there is no node 'b' in round 0; there are a"),
        (ask(cluster, "logs", "--last", "x"), 2, "--last x: "),
    ):
        is_refused(failed, code, said)
    cluster.order(f"for n in range(5000): {says('many', 'stderr')}")
    wait_until(lambda: shown(cluster, "--last", "3") == ["[0] many"] * 3, "the last lines")
    head = first_line(cluster, line_of(cluster, "logs", "--last", "1000"))
    assert head.stdout == "[0] many\n"
    assert "Traceback" not in head.stderr
    assert "rror" not in head.stderr
    cluster.end_well(a)


def test_V6_who_follows_gets_each_line_once_when_the_coordinator_is_started_again(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, nnodes="1", lease=60) as cluster:
        cluster.make_token()
        serve = RestartedServe(cluster)
        a = cluster.agent("a", hosts=False)
        cluster.wait_workers(1, round=0)
        follows = Following(cluster)
        enough = tmp_path / "enough"
        cluster.order(COUNTS.replace("ENOUGH", repr(str(enough))))
        follows.wait_line("[0] line 5")
        serve.restart(a)
        wait_until(lambda: "looking for a coordinator" in follows.said, "the command to notice")
        before = len(follows.lines)
        wait_until(lambda: len(follows.lines) > before, "more lines")
        enough.touch()
        assert a.wait_exit() == 0
        assert follows.process.wait(patience(LIMIT_S)) == 0
        shown_lines = (line for line in follows.lines if line.startswith("[0] line "))
        numbers = sorted(int(line.split()[-1]) for line in shown_lines)
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert follows.lines.count("[0] the end") == 1


def test_V6_who_follows_waits_until_a_coordinator_that_was_started_again_hosts_the_job(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, nnodes="1", lease=60) as cluster:
        cluster.make_token()
        serve = RestartedServe(cluster)
        a = cluster.agent("a", hosts=False)
        cluster.wait_workers(1, round=0)
        follows = Following(cluster)
        cluster.order(says("before"))
        follows.wait_line("[0] before")
        a.signal(signal.SIGSTOP)
        serve.restart()
        wait_until(lambda: "looking for a coordinator" in follows.said, "the command to notice")
        asks_again_by = time.monotonic() + 2 * RETRY_S
        while time.monotonic() < asks_again_by:
            asked = ask(cluster, "logs")
            assert (asked.returncode, asked.stdout) == (2, "")
            assert ": this coordinator " in asked.stderr
        assert follows.process.poll() is None, follows.said
        a.signal(signal.SIGCONT)
        cluster.order(says("after"))
        follows.wait_line("[0] after")
        cluster.end_well(a)
        assert follows.process.wait(patience(LIMIT_S)) == 0
