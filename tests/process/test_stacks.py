"""The stacks of another process, which it writes by itself."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from rallypoint.process.stacks import dump

SLOW = """
import signal, sys, time
def write(number, frame):
    with open(sys.argv[1], "a", buffering=1) as file:
        file.write("Thread 1:\\n  Fi")
        file.flush()
        time.sleep(0.5)
        file.write("le x in busy\\n")
signal.signal(int(sys.argv[2]), write)
print("ready", flush=True)
while True: time.sleep(0.1)
"""


def test_a_writer_that_waits_for_a_cpu_within_a_line_is_waited_for(tmp_path: Path) -> None:
    path, number = tmp_path / "stacks", int(signal.SIGRTMIN) + 3
    path.write_text("of before\n")
    command = [sys.executable, "-c", SLOW, str(path), str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as slow:
        assert slow.stdout is not None
        slow.stdout.readline()
        text = asyncio.run(dump(slow.pid, slow.pid, number, str(path), timeout_s=30.0))
        slow.kill()
    assert text == "Thread 1:\n  File x in busy"
