"""`rallypoint serve`: a coordinator of its own, for many jobs at once.

A job whose coordinator lives in one of its agents ends with that node. This one outlives every
node of every job that uses it.
"""

from __future__ import annotations

import asyncio
import os.path
from functools import partial
from socket import socket
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.cli import access
from rallypoint.cli.empty_values import needs_a_value
from rallypoint.cli.parser import Command, parse, with_hint
from rallypoint.cli.service import (
    EndingSignal,
    EventLines,
    bind,
    listening_at,
    own_addresses,
    port_option,
)
from rallypoint.config import DEFAULT_COORDINATOR_PORT
from rallypoint.coordinator.hosting import Hosting
from rallypoint.coordinator.listen import raise_open_files_limit
from rallypoint.coordinator.server import Coordinator
from rallypoint.coordinator.token import Token
from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import Record
from rallypoint.core.settings import HOLD_MAX_S, HOLD_MIN_S, HOLD_S, Setting
from rallypoint.errors import UsageError
from rallypoint.observe.faults import Faults

if TYPE_CHECKING:  # for --data-dir alone
    from rallypoint.coordinator.candidates import Candidates
    from rallypoint.coordinator.led_jobs import LedJobs

SERVE = Command(
    "serve",
    """\
usage: rallypoint serve --host ADDR [options]

Host the coordinator of many jobs on this machine, apart from their nodes.

Without it the first node of a job hosts the job's coordinator, and the job ends
with that node, unless its nodes share a directory (rallypoint run
--rdzv-backend file, which needs no server). With it, any node may come and go:

  rallypoint serve --host 10.0.0.5             on a machine that outlives the jobs
  rallypoint run --rdzv-endpoint 10.0.0.5 --rdzv-id digits train.py

--rdzv-id distinguishes the jobs. Nodes need the token of the user who serves,
or one that `rallypoint token --run-id ID` made from it.

With --data-dir the coordinator itself may be killed and started again: agents
look for it until the join timeout, their workers run on until the lease (15 s)
ends, and no worker notices one that is back by then. DIR is made if there is
none. Of two that serve on one DIR, one leads a job and the other waits.

With --candidate it also stands ready for the jobs whose nodes share DIR, and
leads one when its leading node is lost or leaves:

  rallypoint serve --host 10.0.0.5 --data-dir /shared/jobs --candidate
  rallypoint run --rdzv-backend file --rdzv-endpoint /shared/jobs ...
""",
    (
        (
            "Options",
            (
                Setting(
                    "--host",
                    "ADDR",
                    "the address of this machine that the nodes reach, the only one listened on"
                    " (0.0.0.0 and :: mean all of them)",
                    "host",
                    required=True,
                ),
                port_option(DEFAULT_COORDINATOR_PORT),
                Setting(
                    "--data-dir",
                    "DIR",
                    "keep what is known of the jobs in DIR: a coordinator that is started again"
                    " goes on with them, and their workers run on meanwhile",
                    "directory",
                ),
                Setting(
                    "--candidate",
                    "",
                    "stand ready to lead the jobs whose nodes share DIR, before any of their nodes",
                    "switch",
                ),
                Setting(
                    "--hold",
                    "SECONDS",
                    "with --data-dir: how long it may lead a job after it has written the job's"
                    " record; another one waits so long before it leads",
                    "seconds",
                    default=f"{HOLD_S:g}",
                    least=HOLD_MIN_S,
                    most=HOLD_MAX_S,
                ),
                *access.token_options("let every host that reaches the port take part"),
                Setting(
                    "--log-format",
                    "text|json",
                    "form of the lines on stderr, one for each event of a job",
                    "choice",
                    default="text",
                ),
                Setting("--quiet", "", "print nothing", "switch"),
            ),
        ),
    ),
    """\
Exit codes: 2 wrong usage (the port is in use, the address is not this
machine's, DIR is no directory, not yours, or others may write to it), 75 the
system refused to listen or to write to DIR (full, read-only), 130 and 143 ended
by SIGINT and SIGTERM. Jobs that still run then lose their coordinator: their
nodes stop the workers when the lease expires and exit with 75; with --data-dir
they stop them then, and look for a coordinator until the join timeout.
""",
)


class _Options(Struct, frozen=True):
    host: str
    port: int
    access: access.Access
    data_dir: str | None
    hold_s: float
    is_candidate: bool
    json: bool
    quiet: bool


def run(argv: list[str]) -> int:
    """Serve until a signal ends it; returns 128 + its number. Blocks; for the main thread.

    Raises UsageError or AccessError when it can't start, InfrastructureError when the system
    refuses, and HelpRequested.
    """
    options = with_hint(SERVE, lambda: _parse(argv))
    token = options.access.find(create=True)
    access.keep_secrets()
    lines = EventLines(json=options.json, quiet=options.quiet)
    try:
        return asyncio.run(_serve(options, token, lines))
    finally:
        lines.close()


async def _serve(options: _Options, token: Token | None, lines: EventLines) -> int:
    listeners = bind(options.host, await own_addresses(options.host), options.port)
    raise_open_files_limit()
    faults = Faults(lambda text: lines.say(kinds.FAULT(text)))
    asyncio.get_running_loop().set_exception_handler(faults.of_loop)
    led = None if options.data_dir is None else _led(options, listeners, token, lines)
    who_leads = None if led is None else led.who_leads
    hosting = Hosting(lines.record, led=led, who_leads=who_leads)
    coordinator = Coordinator(listeners, hosting, None if token is None else token.for_job)
    candidates = None
    if led is not None and options.is_candidate:
        candidates = _candidates(options, led, coordinator, token)
    try:
        ending = EndingSignal()
        lines.say(_serving(listeners, token, options.data_dir))
        code = await ending.wait(lines, kinds.SERVE_SIGNAL)
        if candidates is not None:
            candidates.close()
        await coordinator.vacate()
    finally:
        coordinator.close()
        faults.tell_counts()
    await asyncio.sleep(0)  # transports close their sockets in the next turn of the loop
    return code


def _led(
    options: _Options, listeners: list[socket], token: Token | None, lines: EventLines
) -> LedJobs:
    """By the registers in its directory, which is made if there is none. Raises UsageError or
    InfrastructureError if they can't be kept there."""
    from rallypoint.coordinator.led_jobs import LedJobs, local_leader
    from rallypoint.rendezvous.data_directory import prepare, sweep
    from rallypoint.rendezvous.directory_backend import DirectoryBackend
    from rallypoint.rendezvous.directory_files import LocalFiles

    assert options.data_dir is not None
    for remark in prepare(options.data_dir, LocalFiles(), "--data-dir"):
        lines.say(kinds.NOTICE(remark))
    directory = os.path.abspath(options.data_dir)  # Agents elsewhere are told of files in it.

    def open_register(run_id: str) -> DirectoryBackend:
        return DirectoryBackend(directory, run_id, None if token is None else token.for_job(run_id))

    def on_wait(run_id: str, text: str) -> None:
        lines.record(run_id, kinds.WAITS_TO_LEAD(text))

    addresses = tuple(map(str, listening_at(listeners)))
    led = LedJobs(open_register, addresses, on_wait, local_leader(options.hold_s))
    led.call(partial(sweep, LocalFiles(), directory))
    return led


def _candidates(
    options: _Options, led: LedJobs, coordinator: Coordinator, token: Token | None
) -> Candidates:
    """Stands ready to lead the jobs that others lead by registers in this directory."""
    from rallypoint.rendezvous.registers_in import stand_ready

    assert options.data_dir is not None
    lookup_token = None if token is None else token.for_job
    return stand_ready(options.data_dir, led, coordinator.jobs, lookup_token)


def _serving(listeners: list[socket], token: Token | None, directory: str | None) -> Record:
    secret = "--insecure: anyone may take part" if token is None else f"token {token.source}"
    if directory is not None:
        secret += f"; jobs are kept in {directory}"
    return kinds.SERVING(places=", ".join(map(str, listening_at(listeners))), secret=secret)


def _parse(argv: list[str]) -> _Options:
    scanned = parse(SERVE, argv, {})
    if (given := scanned.get("--data-dir")) is not None and not given.text.strip():
        raise UsageError(needs_a_value("--data-dir"))
    hold_s = scanned.read(SERVE, "--hold", HOLD_S)
    if (given := scanned.get("--hold")) is not None:
        if scanned.get("--data-dir") is None:
            raise UsageError("--hold: add --data-dir DIR, where the records of the jobs lie")
        if not HOLD_MIN_S <= hold_s <= HOLD_MAX_S:
            raise given.wrong(f"needs {HOLD_MIN_S} to {HOLD_MAX_S} seconds")
    if scanned.on("--candidate") and scanned.get("--data-dir") is None:
        raise UsageError(
            "--candidate: add --data-dir DIR, the directory that the nodes name as --rdzv-endpoint"
        )
    return _Options(
        host=scanned.read(SERVE, "--host"),
        port=scanned.read(SERVE, "--port", DEFAULT_COORDINATOR_PORT),
        access=access.read_access(scanned),
        data_dir=scanned.read(SERVE, "--data-dir", None),
        is_candidate=scanned.on("--candidate"),
        hold_s=hold_s,
        json=scanned.read(SERVE, "--log-format") == "json",
        quiet=scanned.on("--quiet"),
    )
