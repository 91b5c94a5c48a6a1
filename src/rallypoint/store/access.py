"""Who may speak to a round store (behaviour F9). Pure: time and owners are arguments.

Allowed are processes of the same user on this machine, and addresses that have enrolled. A process
of another user on this machine never is, whatever has enrolled. An unknown address is held for 5 s,
since its node may be about to enrol, and then dropped. Nothing that a held client sends is parsed,
but for an enrolment, which is how it can be let in.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from msgspec import Struct

HOLD_S = 5.0
MAX_HELD = 4096
"""So many connections may be held at once; one more is refused."""


class Reach(Enum):
    """Where a peer is, and whether the kernel named the owner of its socket."""

    SAME_USER = "a process of this user"
    OTHER_USER = "a process of another user"
    LOCAL_UNKNOWN = "a local process whose user the kernel did not name"
    REMOTE = "another machine"


class Peer(Struct, frozen=True):
    """The other end of a connection; the address is numeric, an IPv4-mapped one as IPv4."""

    address: str
    port: int
    reach: Reach
    uid: int | None = None

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


class Admission(Enum):
    """What becomes of a connection."""

    ALLOWED = "allowed"
    HELD = "held"
    REFUSED = "refused"


class Refusal(Struct, frozen=True):
    """Why a connection was dropped, and what would have let it in."""

    peer: Peer
    reason: str

    def __str__(self) -> str:
        return f"dropped the connection from {self.peer}: {self.reason}"


class AccessGate:
    """Decides for one store. `open_access` admits everybody (`--insecure`)."""

    def __init__(self, *, open_access: bool = False, hold_s: float = HOLD_S) -> None:
        self._open_access = open_access
        self._hold_s = hold_s
        self._enrolled: set[str] = set()
        self._held: dict[int, Peer] = {}
        # Deadlines in order, since all are held equally long. Those let in or gone stay until due.
        self._deadlines: deque[tuple[float, int]] = deque()

    def arrive(self, connection: int, peer: Peer, now_s: float) -> tuple[Admission, Refusal | None]:
        """Judges a new connection; ids are never used twice."""
        if self._is_allowed(peer):
            return Admission.ALLOWED, None
        reason = _hopeless(peer)
        if reason is None and len(self._held) >= MAX_HELD:
            reason = f"{MAX_HELD} unknown connections are held already"
        if reason is not None:
            return Admission.REFUSED, Refusal(peer, reason)
        self._held[connection] = peer
        self._deadlines.append((now_s + self._hold_s, connection))
        return Admission.HELD, None

    def enrol(self, address: str) -> list[int]:
        """Allows an address from now on; returns the held connections that this lets in."""
        self._enrolled.add(address)
        admitted = [
            connection for connection, peer in self._held.items() if peer.address == address
        ]
        for connection in admitted:
            del self._held[connection]
        return admitted

    def leave(self, connection: int) -> None:
        """The connection is gone."""
        self._held.pop(connection, None)

    def expire(self, now_s: float) -> list[tuple[int, Refusal]]:
        """The connections that have been held for too long; they are forgotten: close them."""
        dropped = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, connection = self._deadlines.popleft()
            peer = self._held.pop(connection, None)
            if peer is not None:
                reason = (
                    f"no node of this round has enrolled from {peer.address}; if it is one of its "
                    "machines, give its agent the address that it connects from with --local-addr, "
                    "or allow everybody with --insecure"
                )
                dropped.append((connection, Refusal(peer, reason)))
        return dropped

    def next_deadline_s(self) -> float | None:
        """When to call `expire`, on the clock of `now_s`; None while nobody is held."""
        while self._deadlines and self._deadlines[0][1] not in self._held:
            self._deadlines.popleft()
        return self._deadlines[0][0] if self._deadlines else None

    def _is_allowed(self, peer: Peer) -> bool:
        if self._open_access or peer.reach is Reach.SAME_USER:
            return True
        return peer.reach is Reach.REMOTE and peer.address in self._enrolled


def _hopeless(peer: Peer) -> str | None:
    """Why waiting can't help; None if it can."""
    match peer.reach:
        case Reach.OTHER_USER:
            return (
                f"it belongs to user {peer.uid} of this machine, and only the user who runs the "
                "job may use its store; --insecure allows everybody"
            )
        case Reach.LOCAL_UNKNOWN:
            return (
                "the kernel does not say which user of this machine it belongs to; "
                "--insecure allows everybody"
            )
        case Reach.SAME_USER | Reach.REMOTE:
            return None
