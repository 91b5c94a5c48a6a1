"""What every launcher starts here: says first of all when its first line ran.

worker.py PIPE MODE        MODE: stay | deaf (ignores SIGTERM) | last (waits to be told) | steps

Its only output is one line to the named pipe, `pid seconds`, on the clock that all processes of
a machine share. `last` then waits until GATE can be opened and writes a second line as it ends;
`steps` reports one after another.
"""

import time

now = time.monotonic()

import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402


def say(moment: float) -> None:
    """One line, written at once and whole."""
    pipe = os.open(sys.argv[1], os.O_WRONLY)
    os.write(pipe, f"{os.getpid()} {moment!r}\n".encode())
    os.close(pipe)


mode = sys.argv[2]
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
say(now)
if mode == "last":
    os.close(os.open(sys.argv[1] + ".gate", os.O_RDONLY))
    say(time.monotonic())
    os._exit(0)
if mode == "steps":
    from rallypoint import worker

    for step in range(2**31):
        worker.progress(step)
        time.sleep(0.05)
while True:
    time.sleep(3600)
