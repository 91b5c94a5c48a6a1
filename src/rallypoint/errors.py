"""Every exception that Rallypoint raises on purpose, and the person who can act on it.

    RallypointError                 base; `exit_class` says how the command line ends
    +-- UsageError                  the person: a flag, a value, a file name (exit 2)
    |   +-- SettingsConflictError   the person: two nodes were started with different settings
    |   +-- UnguardedLaunchError    the person: no `if __name__ == "__main__":` in the program
    |   +-- ParameterError          the person: a value that a library call does not take
    |   |   |-- UnknownEventHandlerError  there is no event handler of that name
    |   |   `-- RuntimeParameterError     the same, a RuntimeError as with torch
    |   |       `-- CommandLineError          a program's command line; a SystemExit too
    |   |-- UnusedHookError         the author of an agent that overrides what nothing calls
    |   `-- LogsSpecsError          the author of the plug-in that chooses log files
    +-- InfrastructureError         the scheduler: worth a requeue (exit 75)
    |   +-- RendezvousError
    |   |   +-- RendezvousTimeoutError     which nodes were missing, how long was waited
    |   |   +-- RendezvousConnectionError  which peer, and what was being done
    |   |   |   +-- RendezvousRefusedError       its host refuses connections
    |   |   |   `-- SilentPeerError              it accepts connections and sends nothing
    |   |   +-- RendezvousClosedError      the job has ended; carries its verdict
    |   |   |   `-- RendezvousGracefulExitError  this node is not needed: no failure
    |   |   +-- RendezvousStateError       a shared store holds another program's state
    |   |   |   `-- RecordError                  the record of a job can't be used
    |   |   |       `-- UnfitRecordError         it has a value that no leader writes
    |   |   `-- RendezvousPlugInError      the author of the handler or the backend
    |   +-- AccessError             the person: the token is missing or wrong
    |   +-- EnrolmentError          the person: no route to the round store
    |   +-- StoreError              the program that uses a store
    |   |   +-- StoreTimeoutError        which keys were missing, how long was waited
    |   |   +-- StoreConnectionError     which peer, and what was being done
    |   |   +-- StoreQueueEmptyError     a pop that should not wait found nothing
    |   |   `-- StoreCorruptError        a file of another kind, or a damaged one
    |   `-- LogStorageError         the person: the log directory is full or gone
    +-- ChildFailedError            the person: workers failed; names the first one
    +-- SignalException             the person or scheduler that sent the signal
    +-- ProtocolError               the peer broke the rules of the wire
    |   +-- MessageError        us, or a hostile node: a value outside its limits
    |   +-- ForeignPeerError        the person: another program uses the endpoint's port
    |   |   `-- PeerHungUpError             it closes the connection without an answer
    |   `-- VersionMismatchError    the person: another version of Rallypoint on the other side
    `-- InvariantError              us: please report it

Errors carry data and build their message from it; a foreign exception is translated once, at the
edge, and kept as the cause. Each can be pickled and copied, with its fields: pools of processes,
Ray and joblib carry an error to the program that waits for it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from enum import Enum
from signal import Signals
from typing import Any, NamedTuple, Protocol, TypeVar

_MAX_SHOWN = 5
_BANNER_WIDTH = 60


class ExitClass(Enum):
    """The class of a command's end; the number is its default exit code."""

    SUCCESS = 0
    FAILED = 1
    USAGE = 2
    INFRASTRUCTURE = 75


MACHINE_ERRNOS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
    | {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT}
)
"""Error numbers by which a machine reports that a resource is exhausted, or a part is broken."""


class Shortage(NamedTuple):
    """The resource that this machine refused while workers were being started."""

    stage: str
    """The step that failed, such as `fork` or `open log files`."""
    errno: int
    """The error number: one of `MACHINE_ERRNOS`."""


class PortableError(Exception):
    """An error that can be pickled and copied, whatever its constructor takes.

    It is pickled by its arguments and its fields.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return _remade, (type(self), self.args), self.__dict__ or None


def _remade(kind: type[BaseException], args: tuple[object, ...]) -> BaseException:
    bases = (OSError, SystemExit, Exception)
    made: BaseException = next(base for base in bases if issubclass(kind, base)).__new__(kind)
    made.args = args
    return made


class RallypointError(PortableError):
    """The base of all errors.

    `str(error)` is one line for a person: the fault and the fix. Only that of ChildFailedError has
    many lines.
    """

    exit_class = ExitClass.FAILED
    shortage: Shortage | None = None
    """The missing resource, if workers could not be started because of this machine; then neither
    the job nor an option is to blame."""


_Error = TypeVar("_Error", bound=RallypointError)


def during(stage: str, number: int | None, error: _Error) -> _Error:
    """Mark the error as this machine's fault if `number` is one of `MACHINE_ERRNOS`; return it.

    It then gets a `Shortage` for the step `stage`, and the exit class of infrastructure: the same
    command may work on another machine.
    """
    if number in MACHINE_ERRNOS:
        assert number is not None
        error.shortage, error.exit_class = Shortage(stage, number), ExitClass.INFRASTRUCTURE
    return error


class UsageError(RallypointError):
    """The command line, a file, a setting or the program is wrong; a person has to change it."""

    exit_class = ExitClass.USAGE


class SettingsConflictError(UsageError):
    """The error when two nodes of one job have different settings (behaviour R7).

    `differences` has the name of each such setting, the job's value, and this node's; `flags` how
    a person gives each one.
    """

    def __init__(
        self, differences: Sequence[tuple[str, object, object]], flags: Mapping[str, str]
    ) -> None:
        self.differences = tuple(differences)
        here = ", ".join(f"{name}={_shown(node)}" for name, _, node in differences)
        there = ", ".join(f"{name}={_shown(job)}" for name, job, _ in differences)
        options = ", ".join(flags.get(name, name) for name, _, _ in differences)
        super().__init__(
            f"this node was started with {here} but the job runs with {there}: "
            f"start every node of a job with the same {options}"
        )


def _shown(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


class UnguardedLaunchError(UsageError):
    """A worker imports the program that launched it, and so launches again."""

    def __init__(self) -> None:
        super().__init__(
            "workers import the program to find its function, and importing it launches again: "
            "put the launch under `if __name__ == '__main__':`"
        )


class ParameterError(UsageError, ValueError):
    """An argument or a configuration value can't be used. Names it, its value and the fix."""


class RuntimeParameterError(ParameterError, RuntimeError):
    """An argument can't be used, where torch raises a RuntimeError; so this is one as well."""


class CommandLineError(RuntimeParameterError, SystemExit):
    """The command line that a program gave can't be used; the reason was printed already.

    A SystemExit too, as a parser of `argparse` raises: nothing else is printed if nobody catches
    it.
    """

    def __init__(self, text: str, exit_class: ExitClass = ExitClass.USAGE) -> None:
        super().__init__(text)
        self.exit_class = exit_class

    @property
    def code(self) -> int:  # type: ignore[override]
        """The exit code of a program that does not catch the error."""
        return self.exit_class.value


class UnusedHookError(UsageError, TypeError):
    """A subclass of an agent overrides a method of torch's agent that is never called here."""


class UnknownEventHandlerError(ParameterError, KeyError):
    """The event handler of that name does not exist. A KeyError too, as with torch."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class InfrastructureError(RallypointError):
    """The error when something around the job failed; the same command may work again."""

    exit_class = ExitClass.INFRASTRUCTURE


class RendezvousError(InfrastructureError):
    """The nodes could not agree on a round."""


class RendezvousTimeoutError(RendezvousError):
    """The wait for other nodes, the coordinator, an address or the job's record was too long."""


class RendezvousConnectionError(RendezvousError):
    """The coordinator, a register or a rendezvous backend can't be reached, or was lost.

    Commands also raise it if nothing answers their question.
    """


class RendezvousRefusedError(RendezvousConnectionError):
    """The coordinator's host refuses connections at the endpoint."""


class SilentPeerError(RendezvousConnectionError):
    """The endpoint accepts connections and sends nothing.

    Another program, or a stopped coordinator.
    """


class RendezvousClosedError(RendezvousError):
    """The job has ended, or this node has left it."""


class RendezvousGracefulExitError(RendezvousClosedError):
    """A spare was not needed until the job ended, or another node took its place: no failure."""

    exit_class = ExitClass.SUCCESS


class RendezvousStateError(RendezvousError):
    """A state in a shared store can't be used; it was not changed.

    It is damaged, another program's, of another version or too large, or its backend is broken.
    """


class RecordError(RendezvousStateError):
    """The value in a job's register can't be used.

    It is foreign, corrupt, of a newer version, or sealed with another token. A retry finds the
    same.
    """

    exit_class = ExitClass.USAGE


class UnfitRecordError(RecordError):
    """A value in a job's record is one that no leader writes.

    A running leader restores its own record.
    """

    def __init__(self, fault: str) -> None:
        super().__init__(
            f"the job's record was not written by a leader: {fault}. A leader that runs writes its "
            "own again; if none runs, remove the record or use another run id"
        )
        self.fault = fault
        """The field of the record that is wrong, its value and the valid values."""


class RendezvousPlugInError(RendezvousError, RuntimeError):
    """A handler or a backend of another package can't be loaded, or breaks its contract."""


class AccessError(InfrastructureError):
    """The token is missing or wrong, or a register or a file refuses this user (behaviour F8)."""

    exit_class = ExitClass.USAGE


class EnrolmentError(InfrastructureError):
    """The node could not reach the round store, the key-value store of a round (behaviour F9)."""


class StoreError(InfrastructureError, RuntimeError):
    """A key-value store failed to carry out an operation.

    It is a RuntimeError, as the errors of torch's stores are.
    """


class StoreTimeoutError(StoreError, TimeoutError):
    """The error when a key, rank, item or lock did not come in time; the store stays usable."""

    def __init__(self, doing: str, missing: Sequence[str], waited_s: float) -> None:
        self.doing, self.missing, self.waited_s = doing, tuple(missing), waited_s
        shown = ", ".join(map(repr, self.missing[:_MAX_SHOWN]))
        more = len(self.missing) - _MAX_SHOWN
        super().__init__(
            f"{doing}: waited {waited_s:.3f} s for {shown}"
            + (f" and {more} more" if more > 0 else "")
        )


class StoreConnectionError(StoreError, ConnectionError):
    """A store's server can't listen or be reached, or its file can't be opened.

    Or it went away or is silent; then a TCPStore's client can't be used any more. Whether the
    operation was carried out is unknown.
    """

    def __init__(self, peer: str, doing: str, reason: str) -> None:
        self.peer, self.doing, self.reason = peer, doing, reason
        super().__init__(f"{doing} on the store at {peer}: {reason}")


class StoreQueueEmptyError(StoreError):
    """A pop without waiting found no item."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"the queue {key!r} is empty")


class StoreCorruptError(StoreError):
    """A file is not a store's file, or is damaged; nothing was changed."""

    def __init__(self, file_name: str, offset: int, reason: str) -> None:
        self.file_name, self.offset, self.reason = file_name, offset, reason
        super().__init__(
            f"{file_name} is not a store's file, or was damaged, at byte {offset}: {reason}; "
            "name another file, or remove this one if no process uses it"
        )


class LogsSpecsError(UsageError):
    """A package's plug-in for log files (`--logs-specs`) can't be used."""


class LogStorageError(InfrastructureError):
    """A log file or directory can't be written because of a full, read-only or broken disk."""


class FailedProcess(Protocol):
    """The part of torch's `ProcessFailure` that `ChildFailedError` needs.

    `rallypoint.elastic.multiprocessing.ProcessFailure` has it.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any]
    message: str | dict[str, Any]
    timestamp: int

    def signal_name(self) -> str:
        """Return the name of the signal, such as `SIGSEGV`; `<N/A>` for no signal."""

    def timestamp_isoformat(self) -> str:
        """Return the time of the failure in ISO format."""

    def section(self, index: int, rank: int) -> str:
        """Return the lines about this failure in the banner.

        `index` is its number there, 0 for the first cause; `rank` is the worker's global rank.
        """


class ChildFailedError(RallypointError):
    """The error when workers failed.

    `failures` has the failures that this node knows, by global rank. `first_rank` is the rank of
    the first cause in the whole job (behaviour A3); None: that of the failure with the earliest
    time. `followed` is the number of other failures in the job; None: the others in `failures`.
    Unlike other errors it has a text of many lines: torch's banner. Raises ValueError if there is
    no failure.
    """

    def __init__(
        self,
        name: str,
        failures: Mapping[int, FailedProcess],
        *,
        first_rank: int | None = None,
        followed: int | None = None,
    ) -> None:
        self.name, self.failures = name, dict(failures)
        if not self.failures:
            raise ValueError("a ChildFailedError needs at least one failure")
        self._first_rank = first_rank
        self.followed = len(self.failures) - 1 if followed is None else followed
        super().__init__(self.format_msg())

    def get_first_failure(self) -> tuple[int, FailedProcess]:
        """Return the first cause, as (global rank, failure).

        If it is not known or not in `failures`, the failure with the earliest time is returned.
        """
        if self._first_rank is not None and self._first_rank in self.failures:
            return self._first_rank, self.failures[self._first_rank]
        return min(self.failures.items(), key=lambda item: _moment(item[1]))

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return the banner: a title, the other failures, the first cause.

        The parameters have torch's names.
        """
        root_rank, root = self.get_first_failure()
        others = [item for item in self.failures.items() if item[0] != root_rank]
        title = f"{self.name} FAILED"
        sections = [other.section(n, rank) for n, (rank, other) in enumerate(others, start=1)]
        unseen = self.followed - len(others)
        if unseen > 0:
            sections.append(f"  and {unseen} more, on other nodes")
        return "\n".join(
            [
                "",
                boarder_delim * _BANNER_WIDTH,
                title,
                section_delim * _BANNER_WIDTH,
                "Failures:",
                *(sections or ["  <NO_OTHER_FAILURES>"]),
                section_delim * _BANNER_WIDTH,
                "Root Cause (first observed failure):",
                root.section(0, root_rank),
                boarder_delim * _BANNER_WIDTH,
            ]
        )


def _moment(failure: FailedProcess) -> float:
    """Return the time of a failure in seconds since 1970; failures of torch have whole seconds."""
    moment: float = getattr(failure, "moment", failure.timestamp)
    return moment


class SignalException(RallypointError):
    """A signal ended this process's part of a job, or the job. `sigval` is that signal.

    (The name is torch's.)
    """

    def __init__(self, msg: str, sigval: Signals) -> None:
        self.sigval = sigval
        super().__init__(msg)


class ProtocolError(RallypointError):
    """The peer broke the protocol; the connection must be closed."""


class MessageError(ProtocolError):
    """A message can't be decoded, has a value outside its limits (`core/limits.py`), or is refused.

    A retry would send the same message.
    """

    exit_class = ExitClass.USAGE


class ForeignPeerError(ProtocolError):
    """The peer is another program than Rallypoint."""

    exit_class = ExitClass.USAGE


class PeerHungUpError(ForeignPeerError):
    """The peer closed the connection before it sent anything.

    It is another program, or a proxy without a backend.
    """

    def __init__(self, text: str = "it closes the connection without an answer") -> None:
        super().__init__(text)


class VersionMismatchError(ProtocolError):
    """The peer uses no version of the session protocol that this program uses (behaviour R7)."""

    exit_class = ExitClass.USAGE

    def __init__(self, ours: str, theirs: str) -> None:
        """Make the error; the arguments are texts such as `version 2` or `versions 2 to 3`."""
        self.ours, self.theirs = ours, theirs
        super().__init__(
            f"this node uses {ours} of Rallypoint's protocol but its peer uses {theirs}: "
            "install the same version of rallypoint on every node of the job"
        )


class InvariantError(RallypointError):
    """A bug in Rallypoint; the program stops, and asks for a report."""
