"""The end of `rallypoint launch` on a host: `python -m rallypoint.cli.launch.host`, by ssh.

It says that it is there, is told what to run, starts the agent, and passes on what the agent
writes, how it ends, and the signals for it. When the link breaks the agent drains. With --detach
the agent writes to a file, and this ends at once.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

from rallypoint import __version__
from rallypoint.cli.machine import ThisHost
from rallypoint.cli.run_options.script import check_script
from rallypoint.config import TOKEN_VARIABLE
from rallypoint.core.settings import FLAGS
from rallypoint.errors import UsageError
from rallypoint.files import safe_open
from rallypoint.process.linked_program import FromProgram, LinkedProgram, ProgramLink, start_program
from rallypoint.process.logs.log_dir import safe_name
from rallypoint.process.scratch import HOST_PREFIX, Scratch
from rallypoint.process.syscalls import hide_process
from rallypoint.wire.launch_link import (
    MARK,
    AgentEnded,
    AgentRefused,
    Hello,
    Here,
    Look,
    Start,
    Started,
    frame,
    reader_of_launcher,
)

_FIRST_PORT, _PORTS = 20_000, 10_000
"""The first of the ports for jobs, and their number. They lie below the range that systems assign
automatically."""
STATE = ".local/state/rallypoint/launched"
"""The directory below the home for logs and summaries of detached agents, with a folder of each
job."""


def main() -> int:
    """Serve the link to `rallypoint launch` until the agent has ended, or was detached; return 0.

    The reason why no agent can be started goes through the link.
    """
    hide_process()  # It will know the token.
    link = ProgramLink(0, os.dup(1), reader_of_launcher())
    link.put(MARK + frame(Here(__version__)))
    link.flush()
    look = link.wait_for(Look)
    why = "" if look is None else _why_not_here(look)
    hello = Hello(_own_address(), _free_port())
    link.put(frame(AgentRefused(why) if why else hello))
    link.flush()
    start = None if why else link.wait_for(Start)
    if start is None:
        return 0
    link.may_be_silent(start.silence_s)
    try:
        _run_on(start, link) if start.detached_as else _run(start, link)
    except OSError as error:
        link.put(frame(AgentRefused(f"the agent can't be started: {error}")))
    link.flush()
    return 0


def _why_not_here(look: Look) -> str:
    """Return why an agent can't run here; empty: it can.

    Changes to the directory that is wanted.
    """
    try:
        os.chdir(look.directory)
    except OSError as error:
        return f"the directory {look.directory} can't be entered: {error.strerror}: give --chdir"
    if not look.script:
        return ""
    try:
        check_script(look.script, ThisHost())
    except UsageError as error:
        missing = "no such file"
        there = f"{missing} in {look.directory}: copy it there, or give --chdir"
        text = str(error)
        return text.removesuffix(missing) + there if text.endswith(missing) else text
    return ""


def _run(start: Start, link: ProgramLink) -> None:
    scratch = Scratch(os.environ.get("TMPDIR") or "/tmp", start.node, HOST_PREFIX)
    scratch.make()
    if not scratch.path:
        places = " or ".join(map(os.path.dirname, scratch.paths))
        raise OSError(f"no directory can be made in {places}")
    path = _summary_path(start) or os.path.join(scratch.path, "summary.json")
    before = _version(path)
    try:
        program = _start(start, path, None)
        link.put(frame(Started(program.pid)))
        code = LinkedProgram(program, link).run()
        summary = b""
        if code >= 0 and _version(path) != before:
            with suppress(OSError), open(path, "rb") as file:
                summary = file.read()
        link.put(frame(AgentEnded(code, summary)))
    finally:
        scratch.remove()


def _run_on(start: Start, link: ProgramLink) -> None:
    folder = os.path.join(os.path.expanduser("~"), STATE, safe_name(start.detached_as))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    stem = os.path.join(folder, safe_name(start.node))
    log_fd = safe_open(f"{stem}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    program = _start(start, _summary_path(start) or f"{stem}.json", log_fd)
    link.put(frame(Started(program.pid, f"{stem}.log")))


def _start(start: Start, summary: str, log_fd: int | None) -> FromProgram:
    wanted = () if start.summary else ("--json-summary", summary)
    token = ("--token-fd", "0") if start.token else ()
    argv = (sys.executable, "-P", "-m", "rallypoint", "run", *wanted, *token, *start.argv)
    # What a login shell sets there is not what the person has said to all hosts.
    own = {row.env_name for row in FLAGS.values() if row.twin} | {TOKEN_VARIABLE}
    environ = {name: value for name, value in os.environ.items() if name not in own}
    return start_program(argv, environ | start.environ, start.token, log_fd)


def _summary_path(start: Start) -> str:
    """Return the path that the user wants for this node's summary; empty: none was given."""
    if not start.summary.endswith("/"):
        return start.summary
    return os.path.join(start.summary, f"{start.node.replace('/', '_')}.json")


def _version(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _own_address() -> str:
    """Return the address of this host that ssh has reached; empty if it is not known.

    The variable SSH_CONNECTION has the client's address, too.
    """
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else ""


def _free_port() -> int:
    """Return a port on which nothing listens, chosen at random.

    Jobs that are started at the same time must not choose the same one.
    """
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    while True:
        port = _FIRST_PORT + int.from_bytes(os.urandom(4), "big") % _PORTS
        with (
            suppress(OSError),
            socket.create_server(("", port), family=family, dualstack_ipv6=both),
        ):
            return port


if __name__ == "__main__":
    sys.exit(main())
