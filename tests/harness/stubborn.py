"""Workers that no polite signal ends."""

from __future__ import annotations

STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
for apart in (False, True):
    if os.fork() == 0:
        if apart: os.setpgid(0, 0)
        break
else:
    if "leave" in sys.argv:
        tell("pid", os.getpid())
        os._exit(0)
tell("pid", os.getpid())
time.sleep(600)
"""
"""A program for `one_agent`: the worker has one child in its group and one in a group apart, and
each of the three tells its pid. With the argument `leave` only the children stay."""
