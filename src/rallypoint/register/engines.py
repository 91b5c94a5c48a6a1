"""The engines that keep the records of jobs: their interface, and the table of all engines.

An engine is chosen by name (`--rdzv-backend`). Its module is imported only for a job that uses it.

A package offers another engine as an entry point of the group `rallypoint.registers`, which loads a
`Row`. Entry points are searched only for a name that is not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from rallypoint.config import RegisterConfig, RendezvousConfig
from rallypoint.core.settings import ENGINE_NAMES, HOLD_S
from rallypoint.core.text import named
from rallypoint.errors import (
    AccessError,
    InfrastructureError,
    RallypointError,
    RendezvousConnectionError,
    RendezvousPlugInError,
    UsageError,
)

if TYPE_CHECKING:
    from rallypoint.core.takeover.record import LifeLock
    from rallypoint.register.record import Register

T = TypeVar("T")

GROUP = "rallypoint.registers"
PASSWORD, PASSWORD_FILE = "password", "password_file"
"""The key of the secret setting, which is not taken from a command line, and the key of its
file."""


class NotHereError(UsageError):
    """The machine lacks something that the engine needs; another machine may have it."""


class Wording(Struct, frozen=True):
    """The parts of messages that depend on the engine."""

    check: str
    """The advice to a user if the engine does not answer: `see that it runs there`."""
    same: Callable[[], str]
    """Returns the condition that must hold on all nodes: `... is the same directory on all of
    them`. Blocks."""
    apart: Callable[[], str] = str
    """Returns why nodes may not see each other's records, and the fix; empty: unknown. Blocks."""
    has_fixes: bool = False
    """Whether the errors of `Engine.prepare` say how to fix them, so that `check` is not added."""


class Use(Struct, frozen=True):
    """The job or jobs for which an engine is used."""

    run_id: str = ""
    """The job whose record is used; empty: the records of all jobs, for a process that is not a
    node."""
    nodes: tuple[int, int] = (1, 1)
    """The least and the largest number of nodes of that job."""
    limit_s: float = HOLD_S / 2
    """The seconds within which a call is to end; if not, it raises RendezvousConnectionError. A
    file system, or an etcd of several members, may take longer."""


class LifeLocks(Protocol):
    """Locks that show which processes on this machine live, also across containers."""

    @property
    def own(self) -> LifeLock | None:
        """The lock that this process holds until it ends; None: it holds no lock."""

    def is_free(self, lock: LifeLock) -> bool:
        """Return whether the process that held this lock has ended; False if that is not known."""


class Engine(Protocol):
    """The access to the records of jobs in one place.

    It is made as `(where, settings, use)`: the endpoint, settings by key, and `Use`. The
    constructor does no I/O, and raises UsageError for an invalid value; the text begins with the
    value as it was given: `key=value`, or the endpoint.

    All methods except `open` and `wording` block. One thread at a time calls an engine and the
    registers that it has opened, except for the waits of a `WakingRegister`.
    """

    @property
    def name(self) -> str:
        """The name in the table, for events and errors."""

    @property
    def where(self) -> str:
        """The place as shown to users: `etcd at a:2379,b:2379`."""

    def prepare(self) -> list[str]:
        """Check that records can be read and written, and return remarks for the user.

        Raises UsageError, AccessError or InfrastructureError, and RendezvousConnectionError for a
        fault that may be temporary.
        """

    def open(self, run_id: str, token: bytes | None) -> Register:
        """Return the register of a job, without I/O.

        `token`: the secret by which the processes of the job authenticate versions; None: there is
        none.
        """

    def changed(self) -> list[str]:
        """Return the run ids of the jobs whose records have changed since the last call.

        The first call returns those of all jobs. Leaves out records whose run id is not known or
        readable, and raises nothing.
        """

    def sweep(self) -> None:
        """Remove records that have not changed for a week or more, as far as possible.

        Raises nothing.
        """

    def wording(self) -> Wording:
        """Return the wording of messages about this engine."""


@runtime_checkable
class LockingEngine(Protocol):
    """An engine with locks that show whether a process lives."""

    def life_locks(self) -> LifeLocks | None:
        """Take a lock for this process that shows that it lives, and return the locks. Blocks.

        Where locks can't be trusted, it returns None, or locks of which this process has none.
        """


class Row(Struct, frozen=True):
    """One engine in the table."""

    engine: str
    """`MODULE:CLASS` of the `Engine`. The module is imported when a job uses it."""
    needs: str = ""
    """The kind of thing that the endpoint names; empty: the endpoint may be omitted."""
    holds: str = "a place"
    """The kind of place that holds many records, with its article: `a directory`."""
    keys: tuple[str, ...] = ()
    """The keys of `--rdzv-conf` for this engine. `password` is secret: the command takes it from
    the environment variable RALLYPOINT_<ENGINE>_PASSWORD."""
    files: tuple[str, ...] = ()
    """The keys that name files or directories: their values are made absolute."""
    is_directory: bool = False
    """Whether the endpoint is the path of a directory, which is made absolute."""


_ETCD_FILES = ("password_file", "cacert", "ca_cert", "cert", "ssl_cert", "key", "ssl_cert_key")
ENGINES: dict[str, Row] = {
    "file": Row(
        "rallypoint.register.directory.store:DirectoryEngine",
        needs="DIR, a directory that all nodes share",
        holds="a directory",
        is_directory=True,
    ),
    "etcd": Row(
        "rallypoint.register.etcd.store:EtcdEngine",
        needs="HOST[:2379],..., the members of an etcd that all nodes reach",
        holds="an etcd",
        keys=("protocol", "etcd_prefix", "user", PASSWORD, *_ETCD_FILES),
        files=_ETCD_FILES,
    ),
    "kubernetes": Row(
        "rallypoint.register.kubernetes.store:KubernetesEngine",
        holds="a namespace",
        keys=("server", "service_account"),
        files=("service_account",),
    ),
}
RENAMED = {"etcd-v2": "etcd"}


def renamed_to(name: str) -> str:
    """Return the advice to give an engine's present name in place of `name`, a key of RENAMED."""
    return f"give {named.rdzv_backend} {RENAMED[name]}, with the same endpoint (it is API v3)"


@cache
def _offered(name: str) -> tuple[Row, str] | None:
    """Return the row that a package offers for this name, and words about the offer for errors.

    None: no package offers one. Raises RendezvousPlugInError.
    """
    from importlib.metadata import entry_points  # Only for an unknown name.

    for entry in entry_points(group=GROUP, name=name):
        package = entry.dist.name if entry.dist else "?"
        what = f"the register engine {name!r} of the package {package} ({entry.value})"
        row = _loaded(what, entry.load)
        if isinstance(row, Row):
            return row, what
        raise RendezvousPlugInError(f"{what} is no {Row.__module__}.Row, but {row!r}")
    return None


def _loaded(what: str, load: Callable[[], T]) -> T:
    """Return the result of `load`, which runs code of a package; `what` describes it in errors.

    An error that is not Rallypoint's becomes a RendezvousPlugInError.
    """
    try:
        return load()
    except RallypointError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise RendezvousPlugInError(f"{what} could not be loaded: {why}") from error


def find(name: str) -> Row | None:
    """Return the row of an engine; None: there is none of this name.

    Reads what packages offer if the name is not in the table. Raises RendezvousPlugInError.
    """
    if name in ENGINES:
        return ENGINES[name]
    found = _offered(name)
    return None if found is None else found[0]


def known_engines() -> list[str]:
    """Return the names of all engines: those of the table, then those of packages."""
    from importlib.metadata import entry_points

    offered = (entry.name for entry in entry_points(group=GROUP))
    return [*ENGINE_NAMES, *sorted(set(offered) - set(ENGINE_NAMES))]


def make(register: RegisterConfig, use: Use) -> Engine:
    """Make the chosen engine; imports its module, but does not reach the place of the records.

    Raises UsageError, and RendezvousPlugInError for an unusable engine of a package.
    """
    if row := ENGINES.get(register.engine):
        return _made(row, register, use)
    if (found := _offered(register.engine)) is None:
        known = ", ".join(known_engines())
        raise UsageError(f"there is no register engine {register.engine!r}: known are {known}")
    row, what = found
    return _loaded(what, partial(_made, row, register, use))


def _made(row: Row, register: RegisterConfig, use: Use) -> Engine:
    module, _, kind = row.engine.partition(":")
    maker: Callable[[str, Mapping[str, str], Use], Engine] = getattr(import_module(module), kind)
    return maker(register.where, dict(register.settings), use)


def make_for(rendezvous: RendezvousConfig) -> Engine:
    """Make the engine that keeps the record of this node's job. Raises as `make`."""
    register = rendezvous.register
    assert register is not None
    nodes = rendezvous.min_nodes, rendezvous.max_nodes
    return make(register, Use(rendezvous.run_id, nodes, register.hold_s / 2))


def chosen(
    name: str,
    where: str,
    settings: Mapping[str, str],
    absolute_path: Callable[[str], str],
) -> RegisterConfig:
    """Return the configuration of a register: an engine, its endpoint and its settings.

    `name` is that of an engine that exists, and `where` the endpoint. `absolute_path` makes names
    of files in the settings absolute. Raises as `find`.
    """
    row = find(name)
    assert row is not None
    said = (
        (key, absolute_path(text) if key in row.files else text) for key, text in settings.items()
    )
    return RegisterConfig(name, where, tuple(said))


def prepare(engine: Engine, register: RegisterConfig, flag: str = "") -> list[str]:
    """Call `Engine.prepare`, and return its remarks. Blocks.

    UsageErrors and InfrastructureErrors begin as `as_given` describes. Remarks about the place
    begin with the option `flag` that gave it (empty: --rdzv-endpoint). Raises as `Engine.prepare`,
    but UsageError in place of AccessError. A RendezvousConnectionError passes unchanged.
    """
    try:
        remarks = engine.prepare()
    except RendezvousConnectionError:
        raise
    except (AccessError, UsageError) as error:
        raise UsageError(as_given(register, str(error), flag)) from error
    except InfrastructureError as error:
        raise InfrastructureError(as_given(register, str(error), flag)) from error
    beginning = f"{register.where}: "
    flag = flag or named.rdzv_endpoint
    return [f"{flag} {text}" if text.startswith(beginning) else text for text in remarks]


def as_given(register: RegisterConfig, text: str, flag: str = "") -> str:
    """Return a text about a place, prefixed by the option and the value that named the place.

    The option is `flag` (empty: --rdzv-endpoint), but `--rdzv-backend ENGINE` for an engine whose
    endpoint may be omitted.
    """
    row, where = find(register.engine), register.where
    if row is None or not row.needs:
        return f"{named.rdzv_backend} {register.engine}: {text}"
    return f"{flag or named.rdzv_endpoint} {where}: {text.removeprefix(f'{where}: ')}"


def unanswered(engine: Engine, register: RegisterConfig, seconds: float, why: str) -> str:
    """Return the message for a user after a vain wait of so many seconds for the engine.

    `why` is the last error; empty: there was no answer.
    """
    waited, wording = f"waited {seconds:g} s", engine.wording()
    if not why:
        head = as_given(register, "").removesuffix(": ")
        return f"{head} does not answer: {waited}; {wording.check}"
    if wording.has_fixes:
        return as_given(register, f"{why} ({waited})")
    return as_given(register, f"{waited}: {why}; {wording.check}")
