"""The plan of `rallypoint launch`: the hosts, how to reach them, and the command on each.

Errors are reported here, before a host is reached: the options of `rallypoint run` are read as an
agent will read them, except for facts of its machine.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from rallypoint.cli import access
from rallypoint.cli.launch.options import HERE, LAUNCH, PASSED_ON
from rallypoint.cli.machine import ThisHost
from rallypoint.cli.options import RUN, read_run
from rallypoint.cli.parser import Scanned, parse
from rallypoint.cli.run_options.empty_values import without_empty
from rallypoint.cli.run_options.script import options_behind
from rallypoint.cli.run_options.wrong_script import refuse_a_program
from rallypoint.cli.values import Given, integer, integer_within, nodes
from rallypoint.config import TOKEN_VARIABLE, Endpoint, RegisterConfig, check_name
from rallypoint.core.settings import FLAGS, MAX_NODES
from rallypoint.core.text import job_name, shown
from rallypoint.errors import UsageError
from rallypoint.integrations.hostfile import Host, read_hostfile, read_hosts, without
from rallypoint.wire.launch_link import Started

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PLUG_INS = frozenset({"--logs-specs", "--event-log-handler"})
"""The options whose plug-ins may be installed on the hosts only."""
_SSH = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ControlMaster=no"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
"""The options of ssh: it asks nothing, and detects a host that is down and a broken link. Options
of --ssh stand before them, and take precedence."""


class Remote(Struct, frozen=True):
    """How the hosts are reached, and where their agents run."""

    ssh: tuple[str, ...]
    python: str
    directory: str
    environ: dict[str, str]


class Plan(Struct, frozen=True):
    """The requested launch, as it was read from the command line."""

    hosts: tuple[Host, ...]
    least: int
    """The least number of hosts that must take part."""
    most: int
    """The most hosts that work at a time; further ones are on standby."""
    remote: Remote
    run_id: str
    options: tuple[str, ...]
    """Options of `rallypoint run`, equal on all hosts."""
    conf: str
    """The value of --rdzv-conf. With `picks_endpoint`, `is_host` is added for each host, unless it
    is there."""
    workers: bool
    """Whether the number of workers is among the options; else it is the slots of a host."""
    picks_endpoint: bool
    words: tuple[str, ...]
    """The script and its arguments."""
    script: str
    """The file that every host needs; empty: a module or a program is run."""
    output: str
    """The value of --output."""

    def ssh_command(self, host: Host) -> tuple[str, ...]:
        """Return the command that reaches the host. Its last word is for the login shell there."""
        there = f"exec {shlex.quote(self.remote.python)} -P -m rallypoint.cli.launch.host"
        return (*self.remote.ssh, *_port(host), *_SSH, "--", host.target, there)

    def ssh_words(self, name: str) -> tuple[str, ...]:
        """Return the words that a user would type before the command on that host."""
        host = next(each for each in self.hosts if each.name == name)
        return (*self.remote.ssh, *_port(host), host.target)

    def agent_words(self, host: Host, where: Endpoint | None, leads: bool, ready: int) -> list[str]:
        """Return the words behind `rallypoint run` on this host.

        `where` is the endpoint that the launch has chosen, if it has. `leads`: this host has that
        endpoint. `ready` is the number of hosts that can take part.
        """
        # Nobody else will come: the first round need not wait for more.
        most = max(self.least, min(self.most, ready))
        words = ["--scheduler=none", f"--node-id={host.name}", f"--nnodes={self.least}:{most}"]
        words += [f"--rdzv-id={self.run_id}", *self.options]
        conf = self.conf
        if where is not None:
            words.append(f"--rdzv-endpoint={where}")
            if "is_host" not in conf:
                conf = ",".join(filter(None, (conf, f"is_host={'true' if leads else 'false'}")))
        if conf:
            words.append(f"--rdzv-conf={conf}")
        if not self.workers and host.slots is not None:
            words.append(f"--nproc-per-node={host.slots}")
        return [*words, "--", *self.words]


def _port(host: Host) -> tuple[str, ...]:
    return () if host.port is None else ("-p", str(host.port))


class Asked(Struct, frozen=True):
    """A plan, and what the launch needs besides it."""

    plan: Plan
    token: str
    """The secret of the job, as text; empty: it has none."""
    summary: str
    detach: bool
    remarks: tuple[str, ...] = ()
    """Lines for the person, before a host is reached."""


def read_launch(argv: Sequence[str], environ: Mapping[str, str], machine: ThisHost) -> Asked:
    """Return the launch for the words behind `rallypoint launch`.

    May make the user's token. Raises UsageError, AccessError and HelpRequested.
    """
    scanned = without_empty(parse(LAUNCH, argv, environ))
    if not scanned.words:
        raise UsageError(
            "the script is missing; for example: rallypoint launch --hosts node-a,node-b train.py"
        )
    is_script = not scanned.on("--module") and not scanned.on("--no-python")
    if is_script:
        refuse_a_program(scanned.words)
    hosts = _hosts(scanned, machine)
    least, most = _nodes(scanned, len(hosts))
    where, conf = scanned.get("--rdzv-endpoint"), scanned.get("--rdzv-conf")
    backend = scanned.get("--rdzv-backend")
    run_id = scanned.get("--rdzv-id") or Given(machine.random_id(), "--rdzv-id")
    check_name(run_id.origin, run_id.text)
    workers = scanned.get("--nproc-per-node")
    plan = Plan(
        hosts,
        least,
        most,
        _remote(scanned, environ, machine),
        run_id.text,
        tuple(_passed_on(scanned)),
        conf.text if conf else "",
        workers is not None,
        where is None and (backend is None or backend.text in ("tcp", "c10d")),
        scanned.words,
        scanned.words[0] if is_script else "",
        scanned.read(RUN, "--output", "auto"),
    )
    _check(plan, workers)
    summary = scanned.get("--json-summary")
    token = access.read_access(scanned).find(create=True)
    return Asked(
        plan,
        "" if token is None else token.text_for_job(plan.run_id),
        summary.text if summary else "",
        scanned.on("--detach"),
        tuple(options_behind(LAUNCH, argv, scanned)),
    )


def _hosts(scanned: Scanned, machine: ThisHost) -> tuple[Host, ...]:
    listed, file = scanned.get("--hosts"), scanned.get("--hostfile")
    if listed is not None and file is not None:
        raise listed.wrong(f"the hosts are in {file.origin} too; give one of the two")
    given = listed or file
    if given is None:
        raise UsageError(
            "no hosts: give --hosts a,b,c or --hostfile FILE; for this machine alone there is "
            "rallypoint run"
        )
    try:
        hosts = read_hosts(given.text) if listed else read_hostfile(machine.read_whole(given.text))
    except OSError as error:
        raise given.wrong(f"can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise given.wrong("can't be read: it is no text") from None
    except ValueError as error:
        raise given.wrong(str(error)) from None
    if (excluded := scanned.get("--exclude")) is not None:
        try:
            return without(hosts, excluded.text)
        except ValueError as error:
            raise excluded.wrong(str(error)) from None
    return hosts


def _nodes(scanned: Scanned, hosts: int) -> tuple[int, int]:
    """Return how many hosts must take part, and how many work at most; the others stand by.

    Raises UsageError.
    """
    given, alias = scanned.get("--nodes"), scanned.get("--nnodes")
    if given is not None and alias is not None and given.text != alias.text:
        raise given.wrong(f"{alias.origin} gives another value; give one of the two")
    given = given or alias
    least, most = nodes(given) if given else (hosts, hosts)
    if given is not None and least > hosts:
        raise given.wrong(f"needs {least} hosts, and {hosts} are listed")
    if (spares := scanned.get("--spares")) is None:
        return least, min(most, hosts)
    work = min(most, hosts) - integer_within(spares, 0, MAX_NODES)
    least = work if least == most else least
    if work < max(least, 1):
        raise spares.wrong(f"leaves {max(work, 0)} of {hosts} hosts to work")
    return least, work


def _remote(scanned: Scanned, environ: Mapping[str, str], machine: ThisHost) -> Remote:
    given = scanned.get("--ssh") or Given("ssh", "ssh")
    try:
        ssh = shlex.split(given.text)
    except ValueError as error:
        raise given.wrong(f"a quote is not closed ({error})") from None
    if not ssh or machine.find_program(ssh[0]) is None:
        raise given.wrong("no such program here: install OpenSSH's client, or give --ssh COMMAND")
    directory, other = scanned.get("--chdir"), scanned.get("--working-directory")
    if directory is not None and other is not None:
        raise other.wrong(f"is the same as {directory.origin}; give one of the two")
    directory, python = directory or other, scanned.get("--python")
    return Remote(
        tuple(ssh),
        python.text if python else sys.executable,
        # As the shell has it: what is a link here may lead elsewhere there.
        directory.text if directory else _here(environ),
        dict(_variable(each, environ) for each in scanned.all("--env")),
    )


def _here(environ: Mapping[str, str]) -> str:
    try:
        here, named = os.getcwd(), environ.get("PWD", "")
        same = os.path.isabs(named) and os.path.samefile(named, here)
    except OSError:
        raise UsageError("this directory is gone: give --chdir DIR, or go to another one") from None
    return named if same else here


def _variable(given: Given, environ: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = given.text.partition("=")
    if not _VARIABLE.fullmatch(name):
        raise given.wrong("needs NAME or NAME=VALUE")
    if name == TOKEN_VARIABLE:
        raise given.wrong("the token is sent over ssh, never on a command line: leave it out")
    if not equals:
        if name not in environ:
            raise given.wrong("is not set here: give it as NAME=VALUE")
        value = environ[name]
    return name, value


def _passed_on(scanned: Scanned) -> list[str]:
    words = []
    for flag, row in FLAGS.items():
        if flag not in PASSED_ON or flag in HERE:
            continue
        if not row.metavar:
            words += [flag] if scanned.on(flag) else []
        else:
            given = scanned.all(flag)
            words += [f"{flag}={each.text}" for each in (given if row.repeatable else given[-1:])]
    return words


class AnyMachine(ThisHost):
    """A machine of which nothing is known yet: it has every program and script."""

    def count_workers(
        self, word: str, interpreter: str, environ: Mapping[str, str], tell: Callable[[str], None]
    ) -> int:
        return 1

    def find_program(self, name: str) -> str | None:
        return name

    def script_exists(self, path: str) -> bool:
        return True

    def head(self, path: str) -> bytes:
        return b""

    def read_text(self, path: str) -> str:
        return "any"

    def ask_command(self, command: str, timeout_s: float) -> str | None:
        return "any"

    def check_register(self, register: RegisterConfig) -> None:
        from rallypoint.register.engines import NotHereError

        with suppress(NotHereError):
            super().check_register(register)


def _check(plan: Plan, workers: Given | None) -> None:
    """Refuse options that an agent would refuse on any machine. Raises UsageError."""
    for host in plan.hosts:
        check_name("--hosts", host.name)
        most = MAX_NODES if host.max_slots is None else host.max_slots
        if workers is not None and workers.text.isdecimal() and integer(workers) > most:
            raise workers.wrong(f"{shown(host.name)} has max_slots={most}")
    where = Endpoint("localhost", 1) if plan.picks_endpoint else None
    argv = plan.agent_words(plan.hosts[0], where, leads=True, ready=len(plan.hosts))
    scanned = parse(RUN, argv, {}).minus(_PLUG_INS)
    read_run(without_empty(scanned), {}, AnyMachine())


def detached_lines(
    plan: Plan, started: Mapping[str, Started], where: Endpoint | None, summary: str
) -> Iterator[str]:
    """Yield lines for the user: how to look at a detached job, and how to end it.

    `started` is by host. `where` is the endpoint, if this command has chosen it, and `summary` the
    value of --json-summary.
    """
    yield f"rallypoint: {job_name(plan.run_id)} runs on without this terminal"
    for name, there in started.items():
        yield f"    {name}: pid {there.pid}, output in {there.log}"
    first, there = next(iter(started.items()))
    ssh = shlex.join(plan.ssh_words(first))
    yield f"    see its output: {ssh} tail -F {_quoted(there.log)}"
    drain, cancel = f"{ssh} kill {there.pid}", f"{ssh} kill -INT {there.pid}"
    if where is not None:
        job = shlex.quote(plan.run_id)
        yield f"    see what it does: rallypoint status {where} --job {job}"
        drain = f"rallypoint drain {first} {where} --job {job}"
        cancel = f"rallypoint cancel {where} --job {job}"
    yield f"    have {first} save a checkpoint and leave: {drain}"
    yield f"    cancel it: {cancel}"
    path = summary or f"{os.path.dirname(there.log)}/"
    verdict = f"{_quoted(plan.remote.python)} -m rallypoint verdict {_quoted(path)}"
    yield f"    how it has ended: {ssh} {verdict}"


def _quoted(word: str) -> str:
    """Quote a word that needs it, for this shell and then the remote one."""
    there = shlex.quote(word)
    return word if there == word else shlex.quote(there)
