"""The handshake: both sides prove that they know the job's token, the client first (behaviour F8).

    client                                              server
    hello      RLYP oldest flags run_id nonce CRLF CRLF  ---->
               <----  RLYP version CHALLENGE flags nonce server_id
    proof      HMAC(token, "rallypoint client" | context)  ---->
               <----  RLYP version WELCOME HMAC(token, "rallypoint server" | context)

where context = version, run id, both nonces, server id, and from version 4 on the versions that the
server was offered and those that it speaks. The version is the newest that both speak. A nonce
names in its last bytes the versions of its side, so that nobody between the two can have them use
an older one (`versions.py`). The labels differ, so no proof can be reflected; both nonces are
fresh, so none can be replayed. With `--insecure` the challenge says so and the handshake ends
there. A node with a token refuses a server that does not ask for it, and a server that asks accepts
nothing else.

Before the proof nothing is parsed but these few fixed fields. Instead of an answer the server may
send a REFUSED with one line for a person; the layout of its header and of that frame must never
change, so that incompatible versions can still state why.

Both classes are sans-I/O: bytes in, bytes out. A caller limits the time that it waits, sends
`last_words` when `feed` raised, then closes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum, auto
from struct import Struct
from typing import assert_never

import msgspec

from rallypoint.core.text import named, quoted_job
from rallypoint.errors import (
    AccessError,
    ForeignPeerError,
    PeerHungUpError,
    ProtocolError,
    UsageError,
    VersionMismatchError,
)
from rallypoint.hashes import compare_digest
from rallypoint.wire.keys import PROOF_BYTES, ProofContext, SessionKeys
from rallypoint.wire.preamble import SESSION_MAGIC, describe_foreign
from rallypoint.wire.versions import SPOKEN, WITH_RANGES, Versions

NONCE_BYTES = 32
SERVER_ID_BYTES = 16
MAX_RUN_ID_BYTES = 255
MAX_REFUSAL_BYTES = 512
MAX_HANDSHAKE_BYTES = 4096


def how_to_get_a_token() -> str:
    """Return the advice for a user whose node has no token, or a wrong one."""
    return (
        "give that node the token of the others (`rallypoint token` prints it there), as "
        f"~/.config/rallypoint/token (mode 0600), in RALLYPOINT_TOKEN or by {named.token_file}"
    )


_HELLO = Struct(">4sHBB")
_REPLY = Struct(">4sHB")
_CHALLENGE = Struct(f">B{NONCE_BYTES}s{SERVER_ID_BYTES}s")
_REFUSAL = Struct(">H")
_LINE_END = b"\r\n\r\n"  # ends the hello: a server of lines (HTTP) answers, and so shows itself
_HAS_TOKEN, _WANTS_TOKEN = 1, 1


class TokenNotWanted(AccessError):
    """The error of a node with a token whose coordinator runs without one (`--insecure`)."""


class _Reply(IntEnum):
    CHALLENGE = 1
    WELCOME = 2
    REFUSED = 3


class _Stage(Enum):
    OPENING = auto()  # the server awaits the hello, the client the challenge
    PROVING = auto()  # the server awaits the client's proof, the client the server's
    OVER = auto()


class Established(msgspec.Struct, frozen=True):
    """The result of a handshake.

    Both sides have proven that they know the token, except with `--insecure`.

    `keys` is None with `--insecure`. `version` is the version of the protocol that both use from
    now on.

    `leftover` are bytes that followed the handshake: feed them to the frame decoder first.
    """

    run_id: str
    keys: SessionKeys | None
    server_id: bytes
    leftover: bytes
    version: int


class _Handshake:
    """The common part of both sides of a handshake: an inbox, the opening magic, and the end."""

    def __init__(self, nonce: bytes, spoken: Versions) -> None:
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        self._nonce = spoken.marked(nonce)
        self._spoken, self._version = spoken, spoken.newest
        self._inbox = bytearray()
        self._has_heard = False
        self._stage = _Stage.OPENING
        self._error: AccessError | ProtocolError | None = None
        self.result: Established | None = None
        self.last_words = b""

    def feed(self, data: bytes) -> bytes:
        """Process the peer's bytes, and return bytes to send.

        Not to be called once `result` is set.

        Raises AccessError or ProtocolError, and again on every later call: send `last_words`, then
        close.
        """
        if self._error is not None:
            raise self._error
        self._inbox += data
        self._has_heard = True
        answer = b""
        try:
            while self._stage is not _Stage.OVER:
                part = self._advance()
                if part is None:
                    break
                answer += part
            if self._stage is not _Stage.OVER and len(self._inbox) > MAX_HANDSHAKE_BYTES:
                raise ProtocolError(f"the handshake is longer than {MAX_HANDSHAKE_BYTES} bytes")
        except (AccessError, ProtocolError) as error:
            self._error = error
            self._inbox.clear()
            raise
        return answer

    def unfinished(self) -> ProtocolError:
        """Return the error for a peer that disconnected before the end of the handshake."""
        if not self._has_heard:
            return PeerHungUpError()
        return ForeignPeerError(
            "the peer did not finish Rallypoint's handshake: it may be another program, or a "
            "stopped process; check the host and the port of the endpoint"
        )

    def _advance(self) -> bytes | None:
        """Process one message of the inbox and return the reply; None while it is incomplete.

        Raises AccessError or ProtocolError.
        """
        raise NotImplementedError

    def _take(self, size: int) -> bytes | None:
        if len(self._inbox) < size:
            return None
        taken = bytes(self._inbox[:size])
        del self._inbox[:size]
        return taken

    def _check_magic(self) -> None:
        """Check the first bytes from the peer, however few have come. Raises ForeignPeerError.

        A foreign greeting of three bytes must not make this side wait for a fourth.
        """
        seen = bytes(self._inbox[: len(SESSION_MAGIC)])
        if not SESSION_MAGIC.startswith(seen):
            raise ForeignPeerError(
                "another program answers on this port "
                f"({describe_foreign(bytes(self._inbox[:32]))}): check the host and the port of "
                "the endpoint"
            )

    def _finish(self, context: ProofContext, token: bytes | None) -> None:
        self.result = Established(
            run_id=context.run_id,
            keys=None if token is None else context.keys(token),
            server_id=context.server_id,
            leftover=bytes(self._inbox),
            version=self._version,
        )
        self._inbox.clear()
        self._stage = _Stage.OVER


class ClientHandshake(_Handshake):
    """The dialling side of a handshake, such as an agent's.

    Send `hello()` first; done when `result` is set.
    """

    def __init__(
        self, run_id: str, token: bytes | None, nonce: bytes, spoken: Versions = SPOKEN
    ) -> None:
        """Make the dialling side.

        `token` is the job's token (never empty), or None with `--insecure`.

        Raises UsageError when the run id is empty or too long.
        """
        super().__init__(nonce, spoken)
        size = len(run_id.encode())
        if not 0 < size <= MAX_RUN_ID_BYTES:
            raise UsageError(
                f"{named.rdzv_id} has {size} bytes: it must have 1 to {MAX_RUN_ID_BYTES} bytes of "
                "UTF-8"
            )
        if token is not None and not token:
            raise ValueError("an empty token proves nothing")
        self._run_id = run_id
        self._token = token
        self._context: ProofContext | None = None

    def hello(self) -> bytes:
        """Return the bytes that the client sends first."""
        run_id = self._run_id.encode()
        flags = self._spoken.in_flags(0 if self._token is None else _HAS_TOKEN)
        head = _HELLO.pack(SESSION_MAGIC, self._spoken.oldest, flags, len(run_id))
        return head + run_id + self._nonce + _LINE_END

    def _advance(self) -> bytes | None:
        self._check_magic()
        if len(self._inbox) < _REPLY.size:
            return None
        _, version, kind = _REPLY.unpack_from(self._inbox)
        if self._context is None:
            self._version = self._spoken.common(Versions(version, version))
        elif version != self._version:
            raise ProtocolError(f"the coordinator changed to version {version} in the handshake")
        match kind, self._context:
            case _Reply.REFUSED, _:
                self._raise_refusal()
                return None
            case _Reply.CHALLENGE, None:
                return self._on_challenge()
            case _Reply.WELCOME, ProofContext() as context:
                return self._on_welcome(context)
        raise ProtocolError(f"the coordinator sent message {kind} out of turn in the handshake")

    def _raise_refusal(self) -> None:
        """Raise the server's refusal as an AccessError, once all of it has come.

        Raises ProtocolError if it claims to be too long.
        """
        start = _REPLY.size + _REFUSAL.size
        if len(self._inbox) < start:
            return
        (size,) = _REFUSAL.unpack_from(self._inbox, _REPLY.size)
        if size > MAX_REFUSAL_BYTES:
            raise ProtocolError(
                f"the coordinator refuses in {size} bytes, but at most {MAX_REFUSAL_BYTES} are "
                "allowed"
            )
        if len(self._inbox) >= start + size:
            line = printable(bytes(self._inbox[start : start + size]))
            raise AccessError(f"the coordinator refused: {line}")

    def _on_challenge(self) -> bytes | None:
        message = self._take(_REPLY.size + _CHALLENGE.size)
        if message is None:
            return None
        flags, nonce, server_id = _CHALLENGE.unpack_from(message, _REPLY.size)
        theirs = self._spoken_by_server(nonce)
        nonces = self._nonce, nonce
        context = ProofContext(
            self._version, self._run_id, *nonces, server_id, self._spoken, theirs
        )
        wants_token = bool(flags & _WANTS_TOKEN)
        if self._token is None:
            if wants_token:
                raise AccessError(
                    "the coordinator requires a token and this node has none: "
                    f"{how_to_get_a_token()}"
                )
            self._finish(context, None)
            return b""
        if not wants_token:
            raise TokenNotWanted(
                f"the coordinator is running with {named.insecure} and this node is not: start "
                f"every node of the job with {named.insecure}, or none"
            )
        self._context = context
        self._stage = _Stage.PROVING
        return context.client_proof(self._token)

    def _spoken_by_server(self, nonce: bytes) -> Versions:
        """Return the versions that the server speaks; of an old server, only the one in use.

        Raises ProtocolError if the version in use is not the newest that both speak, or the server
        speaks version 4 and names no versions: somebody has altered the handshake.
        """
        theirs = Versions.of_nonce(nonce)
        if theirs is None and self._version < WITH_RANGES:
            return Versions(self._version, self._version)
        if theirs is None or min(self._spoken.newest, theirs.newest) != self._version:
            raise altered()
        return theirs

    def _on_welcome(self, context: ProofContext) -> bytes | None:
        message = self._take(_REPLY.size + PROOF_BYTES)
        if message is None:
            return None
        assert self._token is not None, "only a client with a token has a context"
        if not compare_digest(message[_REPLY.size :], context.server_proof(self._token)):
            raise AccessError(
                "the coordinator could not prove that it knows this job's token: another program "
                "answers at the endpoint"
            )
        self._finish(context, self._token)
        return b""


class ServerHandshake(_Handshake):
    """The coordinator's side of a handshake; done when `result` is set."""

    def __init__(
        self,
        server_id: bytes,
        lookup_token: Callable[[str], bytes | None],
        nonce: bytes,
        insecure: bool,
        spoken: Versions = SPOKEN,
    ) -> None:
        """Make the coordinator's side.

        `lookup_token` returns the token of a run id; None: there is none.

        The peer gets the same answer in that case as for a wrong token. `lookup_token` is called at
        most once, with the run id that an unproven peer sent, and not at all when `insecure`.
        """
        super().__init__(nonce, spoken)
        if len(server_id) != SERVER_ID_BYTES:
            raise ValueError(f"a server id has {SERVER_ID_BYTES} bytes, not {len(server_id)}")
        self._server_id = server_id
        self._lookup_token = lookup_token
        self._insecure = insecure
        self._context: ProofContext | None = None

    def _advance(self) -> bytes | None:
        match self._stage:
            case _Stage.OPENING:
                return self._on_hello()
            case _Stage.PROVING:
                return self._on_proof()
            case _Stage.OVER:
                return None
            case never:
                assert_never(never)

    def _on_hello(self) -> bytes | None:
        self._check_magic()
        if len(self._inbox) < _HELLO.size:
            return None
        _, oldest, flags, size = _HELLO.unpack_from(self._inbox)
        offered = Versions.of_hello(oldest, flags)
        self._version = self._agreed(offered)
        if size == 0:
            raise ProtocolError("a node asked to join a job without a run id")
        message = self._take(_HELLO.size + size + NONCE_BYTES + len(_LINE_END))
        if message is None:
            return None
        try:
            run_id = message[_HELLO.size : _HELLO.size + size].decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a node asked to join a job whose run id is not UTF-8") from error
        client_nonce = message[_HELLO.size + size : -len(_LINE_END)]
        if Versions.of_nonce(client_nonce) not in (None, offered):
            fault = altered()
            self.last_words = self._refusal(str(fault))
            raise fault
        nonces, own = (client_nonce, self._nonce), self._spoken
        context = ProofContext(self._version, run_id, *nonces, self._server_id, offered, own)
        return self._challenge(context, has_token=bool(flags & _HAS_TOKEN))

    def _agreed(self, theirs: Versions) -> int:
        try:
            return self._spoken.common(theirs)
        except VersionMismatchError:
            # In the other's words: the line is printed on the node that is refused.
            error = VersionMismatchError(str(theirs), str(self._spoken))
            self.last_words = self._refusal(str(error))
            raise

    def _challenge(self, context: ProofContext, has_token: bool) -> bytes:
        """Return the challenge to send.

        If only one side has a token, raise AccessError, with the challenge as the last words: each
        side then reports the mistake.
        """
        flags = 0 if self._insecure else _WANTS_TOKEN
        challenge = self._head(_Reply.CHALLENGE) + _CHALLENGE.pack(
            flags, self._nonce, self._server_id
        )
        if has_token == self._insecure:
            self.last_words = challenge
            job = quoted_job(context.run_id)
            raise AccessError(
                f"refused a node of {job}: this coordinator runs with {named.insecure} and that "
                f"node does not: start every node of the job with {named.insecure}, or none"
                if has_token
                else f"refused a node of {job}: it has no token: {how_to_get_a_token()}"
            )
        if self._insecure:
            self._finish(context, None)
        else:
            self._context = context
            self._stage = _Stage.PROVING
        return challenge

    def _on_proof(self) -> bytes | None:
        proof = self._take(PROOF_BYTES)
        if proof is None:
            return None
        context = self._context
        assert context is not None, "a challenge was sent before"
        token = self._lookup_token(context.run_id)
        # An unknown job costs the same work and gets the same line: strangers learn no run ids.
        expected = context.client_proof(token or self._nonce + self._server_id)
        if not compare_digest(proof, expected) or not token:
            job = quoted_job(context.run_id)
            self.last_words = self._refusal(
                f"wrong token for {job}, or another job uses this endpoint. All nodes of a job "
                f"need the same {named.rdzv_id} and token (`rallypoint token` prints it); another "
                "job needs another port"
            )
            raise AccessError(
                f"refused a node: wrong token for {job}: {how_to_get_a_token()}"
                if token
                else f"refused a node of {job}, but this coordinator hosts another job: choose "
                "another port for that one"
            )
        self._finish(context, token)
        return self._head(_Reply.WELCOME) + context.server_proof(token)

    def _head(self, kind: _Reply) -> bytes:
        return _REPLY.pack(SESSION_MAGIC, self._version, kind)

    def _refusal(self, line: str) -> bytes:
        text = line.encode()[:MAX_REFUSAL_BYTES]
        return self._head(_Reply.REFUSED) + _REFUSAL.pack(len(text)) + text


def altered() -> ProtocolError:
    """Return the error for an altered handshake, which names an older version than both speak."""
    return ProtocolError(
        "the handshake of a node and the coordinator was altered on its way: both speak a newer "
        "version of Rallypoint's protocol than it names. Find what is between the two: a "
        "proxy, or another program at the endpoint"
    )


def printable(raw: bytes) -> str:
    """Return a stranger's bytes as text that is safe for a terminal.

    It is one line of at most 512 bytes of input, without control characters.
    """
    text = raw[:MAX_REFUSAL_BYTES].decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)
