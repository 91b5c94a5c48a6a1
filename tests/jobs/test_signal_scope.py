"""Whether the signal of a stop reaches what a worker has started at once (`--signal-scope`)."""

from __future__ import annotations

import signal

from tests.harness.cluster import AgentProcess, Cluster, wait_until

CHILD = """
import os, signal, sys
def stop(*_):
    open("signalled", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
for line in sys.stdin:
    print("batch", line.strip(), flush=True)
while True:
    signal.pause()
"""
LOADER = """
import subprocess
child = subprocess.Popen(
    [sys.executable, "child.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
def ask(what):
    child.stdin.write(what + "\\n")
    child.stdin.flush()
    return child.stdout.readline().strip()
ask("0")
"""
WAITS = (
    LOADER
    + """
def stop(*_):
    child.wait()
    print("the loader ended first", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
open("ready", "w").close()
"""
)
ASKS = (
    LOADER
    + """
def stop(*_):
    print("got", ask("1"), "of a loader", "with" * os.path.exists("signalled"), flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
open("ready", "w").close()
"""
)


def stopped(cluster: Cluster, program: str) -> AgentProcess:
    """The only node of a job after SIGTERM, whose worker has run this program."""
    folder = cluster.folder
    (folder / "child.py").write_text(CHILD)
    cluster.options |= {"shutdown_timeout": 600}
    (a,) = cluster.running("a")
    cluster.order(f"os.chdir({str(folder)!r})\n{program}", node="a")
    wait_until(lambda: (folder / "ready").exists(), "the worker and its loader")
    a.signal(signal.SIGTERM)
    assert a.wait_exit() == 143
    assert "killing" not in [event.name for event in a.events], "nothing had to be killed"
    assert (folder / "signalled").exists()
    return a


def test_A5_the_signal_of_a_stop_reaches_what_a_worker_has_started_at_once(
    cluster: Cluster,
) -> None:
    assert "the loader ended first" in stopped(cluster, WAITS).stdout_lines


def test_A5_with_the_scope_of_a_worker_its_loaders_serve_it_until_it_has_ended(
    cluster: Cluster,
) -> None:
    """Then they get the signal too, so that nobody waits for the grace."""
    cluster.options["signal_scope"] = "worker"
    assert "got batch 1 of a loader" in [
        line.strip() for line in stopped(cluster, ASKS).stdout_lines
    ]
