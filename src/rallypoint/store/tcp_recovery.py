"""When a lost connection to a store may be replaced, and how its loss is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rallypoint.errors import StoreConnectionError
from rallypoint.store.backoff import uniform
from rallypoint.wire.c10d_operations import Exchange, Wait

MIN_REPLY_S = 5.0
"""However short the timeout is, a plain answer may take as long before the store counts as lost."""
MAX_LOSSES = 5
"""One call survives so many losses of a connection that had worked: a request may be to blame."""
_MIN_ATTEMPT_S, _MAX_ATTEMPT_S = 0.5, 10.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.02, 1.0
_SHOWN_KEYS = 3

CLOSED = "it has been closed"
LOST_BY_PEER = "the connection was closed by the store"
NOT_A_STORE = "what answers there is not a c10d store"


class ConnectionLostError(Exception):
    """The connection is closed. `is_silence` tells that the peer did not answer in time."""

    def __init__(self, reason: str, *, is_silence: bool = False) -> None:
        super().__init__(reason)
        self.is_silence = is_silence


def silence(reply_s: float) -> ConnectionLostError:
    """Nothing came for so long."""
    return ConnectionLostError(f"no answer within {reply_s:.3f} s", is_silence=True)


def said_by(error: OSError) -> str:
    """What an error of the system means, in its own words."""
    if isinstance(error, TimeoutError):
        return "no answer"
    return error.strerror or str(error)


class Recovery:
    """What happens to one connected program's requests when connections are lost.

    The first failure that nothing could be done about is the last: all later calls fail like it.
    """

    def __init__(self, peer: str, pid: int) -> None:
        self.peer, self.pid = peer, pid
        self.failure: str | None = None

    def check_usable(self, pid: int, doing: str, keys: Sequence[str]) -> None:
        """Raises StoreConnectionError in a process that has been forked, and after a failure."""
        if pid != self.pid:
            reason = (
                f"it was opened by process {self.pid}, and a forked process can't share its "
                "connection: open another with clone()"
            )
            raise StoreConnectionError(self.peer, described(doing, keys), reason)
        if self.failure is not None:
            raise StoreConnectionError(self.peer, described(doing, keys), self.failure)

    def judge(
        self,
        lost: ConnectionLostError,
        losses: int,
        doing: str,
        keys: Sequence[str],
        *,
        may_repeat: bool,
        owes_answer: bool,
    ) -> None:
        """Returns if the request may be sent again; raises StoreConnectionError if not.

        `losses` is how many connections this call has lost. `owes_answer` tells that something was
        written before which may have got lost with the connection, and nobody would be told.
        """
        is_harmless = may_repeat and not owes_answer and not lost.is_silence
        if is_harmless and losses <= MAX_LOSSES and self.failure is None:
            return
        reason = str(lost) + (", and what was written before may be lost" if owes_answer else "")
        self.failure = self.failure or reason
        raise StoreConnectionError(self.peer, described(doing, keys), self.failure) from lost

    def give_up_connecting(
        self, lost: ConnectionLostError, doing: str, keys: Sequence[str], tried_s: float
    ) -> StoreConnectionError:
        """The error for having tried for so long."""
        self.failure = self.failure or str(lost)
        reason = f"{self.failure} (tried for {tried_s:.3f} s)"
        return StoreConnectionError(self.peer, described(doing, keys), reason)


def looks_first(step: Exchange | Wait) -> bool:
    """Whether to see that the connection is alive first: too late is when the request got lost."""
    return not step.is_repeatable or (isinstance(step, Exchange) and step.read is None)


def attempt_s(left_s: float) -> float:
    """How long one attempt to connect may take; the first one is made with no time left, too."""
    return min(max(left_s, _MIN_ATTEMPT_S), _MAX_ATTEMPT_S)


def pauses() -> Iterator[float]:
    """Seconds between attempts to connect: growing, and different for each of many clients."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s * uniform(0.5, 1.0)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def described(doing: str, keys: Sequence[str]) -> str:
    """An operation and its first keys, for a message."""
    if not keys:
        return doing
    shown = ", ".join(map(repr, keys[:_SHOWN_KEYS]))
    more = len(keys) - _SHOWN_KEYS
    return f"{doing} of {shown}" + (f" and {more} more" if more > 0 else "")


def peer_name(host: str, port: int) -> str:
    """Host and port as one writes them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
