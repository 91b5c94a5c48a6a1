"""A worker of `restart.py`: speaks as soon as a module is imported.

restart_worker.py PIPE MODE MODULE        MODE: stay | forks

`forks` is the floor: for every line on stdin this process, which has imported the module, forks a
child that speaks, and tells the pipe when it began to. A line is `pid seconds`, on the clock that
all processes of a machine share.
"""

import importlib
import os
import sys
import time

importlib.import_module(sys.argv[3])
now = time.monotonic()


def say(moment: float) -> None:
    """One line, written at once and whole."""
    pipe = os.open(sys.argv[1], os.O_WRONLY)
    os.write(pipe, f"{os.getpid()} {moment!r}\n".encode())
    os.close(pipe)


say(now)
if sys.argv[2] == "forks":
    for _ in sys.stdin:
        say(time.monotonic())
        if os.fork() == 0:
            say(time.monotonic())
            os._exit(0)
        os.wait()
    os._exit(0)
while True:
    time.sleep(3600)
