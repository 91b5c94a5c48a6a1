"""Commands that follow a job whose coordinator is killed, with nobody who takes over."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import termios
from contextlib import suppress
from pathlib import Path

from tests.harness.cluster import Cluster, wait_until
from tests.harness.commands import start
from tests.harness.limits import patience

from rallypoint.cli.watch.asking.reach import TAKEOVER_S

LIMIT_S = TAKEOVER_S + 60.0
GONE = re.compile(
    r"rallypoint: job job: the coordinator went away: looking for a coordinator, for "
    rf"{TAKEOVER_S:g} s at most\n"
    rf"rallypoint: no coordinator of job job answers for {TAKEOVER_S:g} s: the node that hosted it "
    r"is lost, or the job has ended\n\Z"
)
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def test_they_end_with_75_and_a_line_and_leave_the_terminal_as_it_was(
    cluster: Cluster, tmp_path: Path
) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    (a,) = cluster.running("a", nnodes="1", shutdown_timeout=600, history="none", round=None)
    cluster.order(DEAF)
    files = {name: tmp_path / name for name in ("status", "events", "logs")}
    following = [start(cluster, "status", "--watch", stdout=theirs)]
    for (name, path), option in zip(files.items(), ("--watch", "-f", "-f"), strict=True):
        with path.open("w") as out:
            following.append(start(cluster, name, option, stdout=out))
    for name in ("status", "events"):
        wait_until(lambda path=files[name]: path.read_text(), f"the first lines of {name}")  # type: ignore[misc]
    cluster.order("print('epoch 1', file=sys.stderr, flush=True)")
    wait_until(lambda: "epoch 1" in files["logs"].read_text(), "a line of the worker")
    wish = start(cluster, "restart", stdout=subprocess.PIPE)
    wait_until(lambda: "asked for a restart" in files["events"].read_text(), "the restart to begin")
    a.kill()
    out, said = wish.communicate(timeout=patience(LIMIT_S))
    assert (wish.returncode, out) == (75, "")
    told = [each.communicate(timeout=patience(LIMIT_S))[1] for each in following]
    assert [each.returncode for each in following] == [75] * 4
    for lines in told:
        assert GONE.search(lines), lines
    for lines in (*told[:-1], said):
        assert GONE.match(lines), lines
    assert termios.tcgetattr(theirs) == before
    os.close(theirs)
    seen = b""
    with suppress(OSError):  # The other end has been closed.
        while data := os.read(ours, 65536):
            seen += data
    os.close(ours)
    assert re.search(rb"job job: (\x1b\[\d+m)?running(\x1b\[0m)? for", seen)
    assert b"\x1b[?" not in seen, "nothing is switched on that would have to be switched off"


def test_V1_who_watches_is_told_when_the_coordinator_is_silent_and_watches_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    shown, said = tmp_path / "shown", tmp_path / "said"
    (a,) = cluster.running("a", nnodes="1", round=None)
    with shown.open("w") as out, said.open("w") as err:
        watching = start(cluster, "status", "--watch", stdout=out, stderr=err)
    wait_until(shown.read_text, "the first lines")
    os.kill(a.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: "looking for a coordinator" in said.read_text(), "the command to notice")
        size = len(shown.read_text())
    finally:
        os.kill(a.pid, signal.SIGCONT)
    wait_until(lambda: len(shown.read_text()) > size, "news")
    cluster.end_well(a)
    assert watching.wait(patience(LIMIT_S)) == 0
    assert "job job: succeeded" in shown.read_text()
