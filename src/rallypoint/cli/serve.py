"""`rallypoint serve`: a coordinator of its own, for many jobs at once.

A job whose coordinator lives in one of its agents, and has no record elsewhere, ends with that
node. This one outlives every node of every job that uses it.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from socket import socket
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.cli import access
from rallypoint.cli.machine import ThisHost
from rallypoint.cli.parser import Command, Scanned, parse, with_hint
from rallypoint.cli.run_options.empty_values import needs_a_value
from rallypoint.cli.run_options.register import check_conf, read_place
from rallypoint.cli.service import (
    EndingSignal,
    EventLines,
    bind,
    listening_at,
    notify,
    own_addresses,
    port_option,
)
from rallypoint.cli.values import Given
from rallypoint.config import DEFAULT_COORDINATOR_PORT, Endpoint, RegisterConfig
from rallypoint.coordinator.client.token import JobToken
from rallypoint.coordinator.hosting import Hosting
from rallypoint.coordinator.listen import raise_open_files_limit
from rallypoint.coordinator.server import Coordinator
from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import Record
from rallypoint.core.settings import (
    ENGINE_NAMES,
    FOR_DIRECTORIES,
    HOLD_MAX_S,
    HOLD_MIN_S,
    HOLD_S,
    Setting,
)
from rallypoint.errors import RendezvousConnectionError, UsageError
from rallypoint.observe.faults import Faults
from rallypoint.observe.printing import print_error
from rallypoint.process import titles
from rallypoint.register.engines import (
    Engine,
    LifeLocks,
    LockingEngine,
    Use,
    make,
    prepare,
)
from rallypoint.threads import run_in_thread

if TYPE_CHECKING:  # for some options alone
    from rallypoint.agent.telemetry.metrics_server import MetricsServer
    from rallypoint.coordinator.leading.leaderships import ManyLeaderships
    from rallypoint.coordinator.metrics import CoordinatorMetrics
    from rallypoint.observe.history_log import HistoryLogs
    from rallypoint.register.record import Register

CLOSE_S = 2.0
HEALTHZ_PATH = "/healthz"

SERVE = Command(
    "serve",
    """\
usage: rallypoint serve --host ADDR [options]

Host the coordinator of many jobs on this machine, apart from their nodes.

Without this command, the first node of a job hosts its coordinator, and the job
ends with that node. With it, any node may come and go. Nodes that share a
directory need no server: see rallypoint run --rdzv-backend file.

  rallypoint serve --host 10.0.0.5             on a machine that outlives the jobs
  rallypoint run --rdzv-endpoint 10.0.0.5 --rdzv-id digits train.py

--rdzv-id distinguishes the jobs. Nodes need the token of the user who runs this
command, or one that `rallypoint token --run-id ID` derived from it.

With --data-dir the coordinator itself may be killed and started again. Agents
look for it until the join timeout. If it is back before the lease (15 s) ends,
the workers keep running. DIR is created if it is missing. If two coordinators
use one DIR, one leads a job and the other waits.

With --candidate this coordinator also takes over jobs whose nodes share DIR, when
their leading node is lost or leaves:

  rallypoint serve --host 10.0.0.5 --data-dir /shared/jobs --candidate
  rallypoint run --rdzv-backend file --rdzv-endpoint /shared/jobs ...

Jobs may also be kept in an etcd. On three machines, so that any may be lost:

  rallypoint serve --host 10.0.0.5 --rdzv-backend etcd --rdzv-endpoint e1,e2,e3 \\
      --candidate
  rallypoint run --rdzv-backend etcd --rdzv-endpoint e1,e2,e3 ...
""",
    (
        (
            "Options",
            (
                Setting(
                    "--host",
                    "ADDR",
                    "address of this machine on which to listen, and that the nodes reach (0.0.0.0"
                    " and ::: all addresses)",
                    "host",
                    required=True,
                ),
                port_option(DEFAULT_COORDINATOR_PORT),
                Setting(
                    "--data-dir",
                    "DIR",
                    "keep the records of the jobs in DIR: a coordinator that is started again"
                    " continues them, and their workers keep running meanwhile",
                    "directory",
                ),
                Setting(
                    "--rdzv-backend",
                    "|".join(ENGINE_NAMES),
                    f"where jobs are kept, as for rallypoint run; {ENGINE_NAMES[0]} is --data-dir",
                    "engine",
                ),
                Setting(
                    "--rdzv-endpoint",
                    "DIR|HOST[:PORT],...",
                    "with --rdzv-backend: the place of the records, as for rallypoint run",
                ),
                Setting("--rdzv-conf", "K=V,...", "with --rdzv-backend: as for rallypoint run"),
                Setting(
                    "--candidate",
                    "",
                    "take over jobs whose nodes use the same place, with priority over these nodes",
                    "switch",
                ),
                Setting(
                    "--hold",
                    "SECONDS",
                    "how long to lead a job after writing its record (--data-dir, --rdzv-backend);"
                    " another coordinator waits this long before it takes over",
                    "seconds",
                    default=f"{HOLD_S:g}",
                    least=HOLD_MIN_S,
                    most=HOLD_MAX_S,
                ),
                Setting(
                    "--metrics-port",
                    "[HOST:]PORT",
                    "serve metrics for Prometheus there, and /healthz (HOST: 127.0.0.1)",
                    "listen",
                ),
                Setting(
                    "--history",
                    "DIR",
                    "append the events of each job to a file in DIR named after the job; see"
                    " rallypoint events FILE",
                    "directory",
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
Exit codes:
  2    wrong usage: the port is in use, the address is not this machine's, DIR is
       no directory, is not yours or is writable for others, or etcd or Kubernetes
       refuses the user
  75   the system refused to listen, or to write to DIR (full, read-only)
  130  ended by SIGINT; 143: by SIGTERM

Jobs that still run then lose their coordinator: their nodes stop the workers when
the lease expires, and exit with 75. With --data-dir or --rdzv-backend another
coordinator takes over. Without one, the nodes stop the workers when the lease
expires, and look for a coordinator until the join timeout.
""",
)


class _Options(Struct, frozen=True):
    host: str
    port: int
    access: access.Access
    register: RegisterConfig | None
    """The place of the jobs' records; None: there are no records."""
    place_flag: str
    """The option that gave the place, --data-dir or --rdzv-endpoint; empty: there is no place."""
    is_candidate: bool
    metrics: Endpoint | None
    history: str | None
    json: bool
    quiet: bool


def run(argv: list[str]) -> int:
    """Serve until a signal ends it, and return 128 + its number. Blocks; for the main thread.

    Raises UsageError or AccessError when it can't start, InfrastructureError when the system
    refuses, and HelpRequested.
    """
    options = with_hint(SERVE, lambda: _parse(argv))
    token = options.access.find(create=True)
    access.keep_secrets()
    titles.set_name("rallypoint-srv")
    lines = EventLines(json=options.json, quiet=options.quiet)
    server = _Server(options, token, lines)
    try:
        return asyncio.run(server.run())
    finally:
        if lost := server.close():
            print_error("rallypoint", lost)
        lines.close()


class _Server:
    """One run of `rallypoint serve`. Call `run` once, in the event loop, and `close` after it."""

    def __init__(self, options: _Options, token: JobToken | None, lines: EventLines) -> None:
        self._options, self._token, self._lines = options, token, lines
        self._lookup_token = None if token is None else token.for_job
        self._history: HistoryLogs | None = None
        if options.history is not None:
            from rallypoint.observe.history_log import HistoryLogs

            self._history = HistoryLogs(options.history)
        self._metrics: CoordinatorMetrics | None = None
        if options.metrics is not None:
            from rallypoint.coordinator.metrics import CoordinatorMetrics

            self._metrics = CoordinatorMetrics()

    async def run(self) -> int:
        """Serve until a signal ends it, and return the exit code. Raises as the function `run`."""
        options, lines = self._options, self._lines
        listeners = bind(options.host, await own_addresses(options.host), options.port)
        metrics_at = None if options.metrics is None else _bind_metrics(options.metrics)
        raise_open_files_limit()
        faults = Faults(lambda text: lines.say(kinds.FAULT(text)))
        asyncio.get_running_loop().set_exception_handler(faults.of_loop)
        engine, led = await self._engine(), None
        if engine is not None:
            locks = None
            if isinstance(engine, LockingEngine):
                locks = await run_in_thread(engine.life_locks, "rallypoint-prepare")
            led = self._led(engine, tuple(map(str, listening_at(listeners))), locks)
        who_leads = None if led is None else led.who_leads
        hosting = Hosting(self._record, led=led, who_leads=who_leads, history=self._history)
        coordinator = Coordinator(listeners, hosting, self._lookup_token)
        with ExitStack() as closing:
            closing.callback(faults.tell_counts)
            closing.callback(coordinator.close)
            ending = EndingSignal()
            lines.say(_serving(listeners, self._token, engine))
            if metrics_at is not None:
                server = self._metrics_server(metrics_at, coordinator, led)
                closing.callback(server.close)
                await server.open()
                lines.say(kinds.METRICS(url=server.url))
            candidates = None
            if engine is not None and led is not None and options.is_candidate:
                from rallypoint.coordinator.leading.candidates import Candidates

                jobs, find = coordinator.jobs, engine.changed
                candidates = Candidates(led, jobs, find, self._lookup_token)
            notify("READY=1")
            code = await ending.wait(lines, kinds.SERVE_SIGNAL)
            notify("STOPPING=1")
            if candidates is not None:
                candidates.close()
            await coordinator.vacate()
        await asyncio.sleep(0)  # transports close their sockets in the next turn of the loop
        return code

    def close(self) -> str:
        """Write the rest of the histories, when the loop has ended.

        Returns a line for a person about what was lost; empty: nothing was. Blocks, for 2 s at
        most.
        """
        return "" if self._history is None else self._history.close(CLOSE_S)

    async def _engine(self) -> Engine | None:
        """Prepare the engine that keeps the jobs' records, and return it.

        None: there are no records. A fault that may be temporary is only reported. Other faults
        raise UsageError or InfrastructureError.
        """
        options, lines = self._options, self._lines
        if options.register is None:
            return None
        engine = make(options.register, Use(limit_s=options.register.hold_s / 2))
        call = partial(prepare, engine, options.register, options.place_flag)
        try:
            for remark in await run_in_thread(call, "rallypoint-prepare"):
                lines.say(kinds.NOTICE(remark))
        except RendezvousConnectionError as error:
            lines.say(kinds.NOTICE(f"jobs wait until {engine.where} can be used: {error}"))
        return engine

    def _led(
        self, engine: Engine, addresses: tuple[str, ...], locks: LifeLocks | None
    ) -> ManyLeaderships:
        from rallypoint.coordinator.leading.leader_process import local_leader, no_secret
        from rallypoint.coordinator.leading.leaderships import ManyLeaderships

        assert self._options.register is not None
        token_of = self._lookup_token
        local = local_leader(self._options.register.hold_s, locks, token_of or no_secret)
        if self._metrics is not None:
            local = replace(local, calls=self._metrics.measured(local.calls))

        def open_register(run_id: str) -> Register:
            return engine.open(run_id, None if token_of is None else token_of(run_id))

        def on_wait(run_id: str, text: str) -> None:
            self._record(run_id, kinds.WAITS_TO_LEAD(text))

        led = ManyLeaderships(open_register, addresses, on_wait, local)
        led.call(engine.sweep)
        return led

    def _record(self, run_id: str, record: Record) -> None:
        if self._metrics is not None:
            self._metrics.record(record)
        self._lines.record(run_id, record)

    def _metrics_server(
        self, listener: socket, coordinator: Coordinator, led: ManyLeaderships | None
    ) -> MetricsServer:
        from rallypoint.agent.telemetry.metrics_server import HEALTH, PATH, MetricsServer, Page

        assert self._metrics is not None
        assert self._options.metrics is not None
        text = partial(self._metrics.text, coordinator, led)
        pages = {PATH: Page(text), HEALTHZ_PATH: HEALTH}
        return MetricsServer(listener, self._options.metrics.host, pages)


def _bind_metrics(endpoint: Endpoint) -> socket:
    from rallypoint.agent.telemetry.metrics_server import bind_metrics

    return bind_metrics(endpoint)


def _serving(listeners: list[socket], token: JobToken | None, engine: Engine | None) -> Record:
    secret = "--insecure: anyone may take part" if token is None else f"token {token.source}"
    if engine is not None:
        secret += f"; jobs are kept in {engine.where}"
    return kinds.SERVING(places=", ".join(map(str, listening_at(listeners))), secret=secret)


def _parse(argv: list[str]) -> _Options:
    scanned = parse(SERVE, argv, {})
    register, flag = _place(scanned)
    if (hold_s := scanned.read(SERVE, "--hold")) is not None:
        if register is None:
            raise UsageError("--hold: add --data-dir DIR, where the records of the jobs lie")
        register = replace(register, hold_s=hold_s)
    if scanned.on("--candidate") and register is None:
        raise UsageError(
            "--candidate: add --data-dir DIR, the directory that the nodes name as "
            "--rdzv-endpoint, or their --rdzv-backend and --rdzv-endpoint"
        )
    return _Options(
        host=scanned.read(SERVE, "--host"),
        port=scanned.read(SERVE, "--port", DEFAULT_COORDINATOR_PORT),
        access=access.read_access(scanned),
        register=register,
        place_flag=flag,
        is_candidate=scanned.on("--candidate"),
        metrics=scanned.read(SERVE, "--metrics-port"),
        history=_history(scanned.get("--history")),
        json=scanned.read(SERVE, "--log-format") == "json",
        quiet=scanned.on("--quiet"),
    )


def _history(directory: Given | None) -> str | None:
    if directory is None:
        return None
    path = directory.text.rstrip("/")
    if not path or "\0" in path:
        raise directory.wrong("needs the name of a directory")
    return f"{path}/"


def _place(scanned: Scanned) -> tuple[RegisterConfig | None, str]:
    """Return the place of the jobs' records, and the option that gave it. Raises UsageError.

    None and an empty text: there are no records, only the coordinator's memory.
    """
    machine, directory = ThisHost(), scanned.get("--data-dir")
    backend = scanned.read(SERVE, "--rdzv-backend")
    if directory is not None and not directory.text.strip():
        raise UsageError(needs_a_value("--data-dir"))
    if backend is None:
        for name in ("--rdzv-endpoint", "--rdzv-conf"):
            if (given := scanned.get(name)) is not None:
                raise given.wrong(f"add --rdzv-backend {' or '.join(ENGINE_NAMES)}")
        if directory is None:
            return None, ""
        # Agents elsewhere are told of files in it.
        where = machine.absolute_path(directory.text)
        return RegisterConfig(FOR_DIRECTORIES, where), "--data-dir"
    if directory is not None:
        raise directory.wrong(f"jobs are kept by --rdzv-backend {backend}: give one of the two")
    register, rest = read_place(scanned, backend, machine)
    check_conf(rest)
    return register, "--rdzv-endpoint"
