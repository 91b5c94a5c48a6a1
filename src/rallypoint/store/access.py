"""The access control of a store (behaviour F9).

Pure: time and owners are arguments.

Processes of the same user on this machine are always admitted. An `AccessPolicy` names the other
peers: none, or addresses that have enrolled and networks from the command line, or all. A process
of another user on this machine is not admitted, whatever has enrolled, unless a loopback network
was given.

Where nodes enrol, an unknown address is held for 5 s, because its node may be about to enrol, and
then dropped. Data of a held client is not parsed, except for an enrolment, which can admit it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

from rallypoint.core import admission
from rallypoint.core.text import named

HOLD_S = 5.0
MAX_HELD = 4096
"""The most connections that are held at a time. Beyond it the address with the most connections
loses its oldest one, so that strangers keep no node out."""


class PeerReach(Enum):
    """The location of a peer, and whether the kernel names the owner of its socket."""

    SAME_USER = "a process of this user"
    OTHER_USER = "a process of another user"
    LOCAL_UNKNOWN = "a local process whose user the kernel did not name"
    REMOTE = "another machine"


class Who(Enum):
    """The kinds of peers that may use a store."""

    SAME_USER = "processes of this user on this machine"
    ALLOWED = "also the machines that are allowed"
    EVERYBODY = "everybody who reaches the port"


class AccessPolicy(Struct, frozen=True):
    """The rules of one store for its peers. `networks` are CIDRs that count with `Who.ALLOWED`."""

    who: Who = Who.SAME_USER
    networks: tuple[str, ...] = ()
    enrolment_key: bytes | None = None
    """The key of the nodes that may enrol. With a key, unknown machines are held for a while, not
    refused at once."""
    remedy: str = "--allow"
    """The option that adds a network, for messages about refused connections."""
    opener: str = "--insecure"
    """The option that admits all peers, for messages about refused connections."""


EVERYBODY = AccessPolicy(Who.EVERYBODY)


def round_policy(key: bytes, *, everybody: bool, networks: Sequence[str] = ()) -> AccessPolicy:
    """Return the policy of a round store.

    Processes of this user on this machine, nodes that enrol with `key`, and `networks` may use it;
    or everybody (`--insecure`).
    """
    who = Who.EVERYBODY if everybody else Who.ALLOWED
    return AccessPolicy(
        who, tuple(networks), enrolment_key=key, remedy=named.store_allow, opener=named.insecure
    )


def parse_network(text: str) -> str:
    """Return a CIDR, or a single address, in its plain form. Raises ValueError with the fault."""
    from ipaddress import ip_network  # few need it, and every agent imports this module

    return str(ip_network(text.strip()))


class Peer(Struct, frozen=True):
    """The other end of a connection; the address is numeric, an IPv4-mapped one as IPv4."""

    address: str
    port: int
    reach: PeerReach
    uid: int | None = None

    def __str__(self) -> str:
        return peer_name(self.address, self.port)


def peer_name(host: str, port: int) -> str:
    """Return `HOST:PORT`, for an IPv6 address `[HOST]:PORT`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Admission(Enum):
    """The decision about a new connection: it may use the store, has to wait, or is closed."""

    ALLOWED = "allowed"
    HELD = "held"
    REFUSED = "refused"


class Refusal(Struct, frozen=True):
    """A connection that was closed, and why. Most reasons name the option that would admit it."""

    peer: Peer
    reason: str

    def __str__(self) -> str:
        return f"dropped the connection from {self.peer}: {self.reason}"


class AccessGate:
    """The access control of one store: which connections are admitted, held or refused.

    A connection of an unknown machine that may enrol is held. It is admitted once the machine has
    enrolled, and refused if it has not within `hold_s` seconds.
    """

    def __init__(self, policy: AccessPolicy, *, hold_s: float = HOLD_S) -> None:
        self._policy, self._hold_s = policy, hold_s
        self._enrolled: set[str] = set()
        self._held: dict[int, Peer] = {}
        self._places = admission.AdmissionLimits(
            MAX_HELD, hold_s, slots_max=MAX_HELD, patience_s=0.0
        )
        self._crowded_out: list[tuple[int, Refusal]] = []

    @property
    def enrolment_key(self) -> bytes | None:
        """The key with which a node proves that it belongs to the round.

        None: enrolment is not possible.
        """
        return self._policy.enrolment_key

    def arrive(self, connection: int, peer: Peer, now_s: float) -> tuple[Admission, Refusal | None]:
        """Decide about a new connection; return the reason, too, if it is refused.

        `connection` is a number never used before. If too many are held, the next `expire` drops an
        older one.
        """
        if self._is_allowed(peer):
            return Admission.ALLOWED, None
        reason = self._hopeless(peer)
        if reason is not None:
            return Admission.REFUSED, Refusal(peer, reason)
        if not self._places.has_free_slot and (oldest := self._places.victim(now_s)) is not None:
            why = f"more than {MAX_HELD} unknown connections are held"
            self._crowded_out.append((oldest, Refusal(self._forget(oldest), why)))
        self._held[connection] = peer
        self._places.arrived(connection, peer.address, now_s)
        return Admission.HELD, None

    def enrol(self, address: str) -> list[int]:
        """Allow an address from now on; return the held connections that this lets in."""
        self._enrolled.add(address)
        admitted = [
            connection for connection, peer in self._held.items() if peer.address == address
        ]
        for connection in admitted:
            self._forget(connection)
        return admitted

    def leave(self, connection: int) -> None:
        """Forget a connection that has ended; it need not be a held one."""
        if connection in self._held:
            self._forget(connection)
        self._crowded_out = [each for each in self._crowded_out if each[0] != connection]

    def expire(self, now_s: float) -> list[tuple[int, Refusal]]:
        """Return the connections that were held too long or crowded out, and forget them.

        The caller closes them, and shows the reasons.
        """
        dropped, self._crowded_out = self._crowded_out, []
        for connection in self._places.overdue(now_s):
            peer = self._forget(connection)
            reason = (
                f"no node of this round has enrolled from {peer.address}; if it is one of its "
                "machines, give its agent that address with --local-addr; "
                f"{self._way_in(peer)}"
            )
            dropped.append((connection, Refusal(peer, reason)))
        return dropped

    def next_deadline_s(self) -> float | None:
        """Return when to call `expire`, on the clock of `now_s`; None while nobody is held.

        0 means at once.
        """
        return 0.0 if self._crowded_out else self._places.next_overdue_at()

    def _forget(self, connection: int) -> Peer:
        self._places.gone(connection)
        return self._held.pop(connection)

    def _is_allowed(self, peer: Peer) -> bool:
        if peer.reach is PeerReach.SAME_USER or self._policy.who is Who.EVERYBODY:
            return True
        if self._policy.who is Who.SAME_USER:
            return False
        if peer.reach is PeerReach.REMOTE and peer.address in self._enrolled:
            return True
        return bool(self._policy.networks) and self._is_in_network(peer)

    def _is_in_network(self, peer: Peer) -> bool:
        from ipaddress import ip_address, ip_network

        address = ip_address(peer.address)
        # A wide network means other machines; another user of this one must be meant expressly.
        return any(
            address in network and (peer.reach is PeerReach.REMOTE or network.is_loopback)
            for network in map(ip_network, self._policy.networks)
        )

    def _hopeless(self, peer: Peer) -> str | None:
        """Return why this peer can't be admitted later either; None: its node may enrol yet."""
        match peer.reach:
            case PeerReach.OTHER_USER:
                return (
                    f"it belongs to user {peer.uid} of this machine, and only the user who runs "
                    f"the store may use it; {self._way_in(peer)}"
                )
            case PeerReach.LOCAL_UNKNOWN:
                return (
                    "the kernel does not say which user of this machine it belongs to; "
                    f"{self._way_in(peer)}"
                )
            case PeerReach.SAME_USER | PeerReach.REMOTE if self._policy.enrolment_key is not None:
                return None
            case PeerReach.SAME_USER | PeerReach.REMOTE:
                return f"{peer.address} is in no network that is allowed; {self._way_in(peer)}"

    def _way_in(self, peer: Peer) -> str:
        if peer.reach is PeerReach.REMOTE:
            return (
                f"{self._policy.remedy} {peer.address} lets it in, {self._policy.opener} everybody"
            )
        loopback = "::1" if ":" in peer.address else "127.0.0.0/8"
        users = f"{self._policy.remedy} {loopback} lets all users of this machine in"
        return f"{users}, {self._policy.opener} everybody"
