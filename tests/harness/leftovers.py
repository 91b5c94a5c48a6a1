"""Nothing that a test has started outlives the tests, however these end.

A process beside each process of pytest waits for its end, and kills what is left: whatever has the
mark of this run in its environment or, since agents show that to root only, the run's folder for
temporary files in its command line.
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

NAME = "LEFTOVERS_MARK"

WATCH = """\
import os, select, signal, sys, time

mark, folder = os.environb[b"MARK"], os.environb[b"FOLDER"]

def read(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""

def left():
    for name in filter(str.isdigit, os.listdir("/proc")):
        ours = mark in read(name, "environ").split(b"\\0") or folder in read(name, "cmdline")
        if ours and int(name) != os.getpid() and b") Z " not in read(name, "stat"):
            yield int(name)

ended = os.pidfd_open(int(os.environ["PARENT"]))
if os.fork():
    os._exit(0)  # What waits is no child of the process that runs the tests.
os.setsid()
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
select.select([ended], [], [])
for _ in range(100):
    found = list(left())
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    if not found:
        break
    time.sleep(0.05)
"""


def kill_when_this_process_ends(folder: Path) -> None:
    """What then is left of what it has started from now on, `folder` being its temporary one."""
    mark = uuid.uuid4().hex
    told = {"PARENT": f"{os.getpid()}", "MARK": f"{NAME}={mark}", "FOLDER": f"{folder}/"}
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    words = [sys.executable, "-I", "-S", "-c", WATCH]
    begun = os.posix_spawn(sys.executable, words, told, file_actions=null)
    os.waitpid(begun, 0)
    os.environ[NAME] = mark
