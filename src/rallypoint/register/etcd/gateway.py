"""Calls of etcd's JSON gateway: the members are asked one after the other, until one answers.

A call that got no answer may have been executed, or may be executed later, and is repeated at
another member. So each must do no harm then: a writer knows its own version by a nonce. Reads are
linearizable, as is the default of etcd.
"""

from __future__ import annotations

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from rallypoint.config import password_variable
from rallypoint.core.json_reader import UnreadableJsonError, read_object
from rallypoint.core.text import named, shown
from rallypoint.errors import AccessError, ParameterError, RendezvousConnectionError
from rallypoint.register import http
from rallypoint.register.etcd.answers import check_answer
from rallypoint.register.etcd.parameters import EtcdConfig
from rallypoint.register.http import HttpConnection, HttpError, HttpRequest, ServerKind

if TYPE_CHECKING:
    from ssl import SSLContext

ATTEMPT_S = 2.0
"""The default time limit for one member's answer, in seconds. An election takes 1 to 2 s."""
LIMIT_S = 5.0
"""The limit of a call at all members together, in seconds: half the usual time for which a leader
may act without writing its record."""
STATUS_S = 0.5
"""The seconds at the end of `LIMIT_S` in which members are asked whether etcd has a leader, if none
has answered the call."""
_SHOWN = 300
"""The number of characters after which a shown message of etcd is cut."""

_AUTHENTICATION_IS_OFF = "authentication is not enabled"
_UNAVAILABLE = (1, 4, 10, 14)
_BY_CODE = {
    7: "may not use the keys under {prefix}: grant it a role with read and write permission there",
    8: "has no space left: compact and defragment it, and disarm its alarm",
}

_KIND = ServerKind("no etcd", "protocol=http", "protocol=https")
_WATCH = "/v3/watch"
_SHOWN_BYTES = 60
_OWN = "etcdserver: "
"""A text that is in messages of etcd itself. An answer 404 without it is not etcd's."""
_OF_A_PROXY = (502, 503, 504)
"""The HTTP statuses of a proxy whose etcd member is unreachable."""


class LeaseEndedError(RendezvousConnectionError):
    """The lease in a request is no longer in etcd; nothing was stored."""


class _Failure(NamedTuple):
    """The failure of a member, as text: the error itself would keep connections in a cycle."""

    endpoint: str
    why: str
    is_lasting: bool


class EtcdMember(HttpConnection):
    """One connection to one member of etcd, for one JSON request at a time.

    Blocks; for one thread at a time, except `abort`, which any thread may call.
    """

    def __init__(self, endpoint: str, tls: SSLContext | None) -> None:
        super().__init__(endpoint, tls, _KIND)

    def post(self, path: str, body: Any, token: str, limit_s: float) -> tuple[int, dict[str, Any]]:
        """POST the body as JSON, with the login token; return the HTTP status and the JSON answer.

        An empty token is not sent. Raises HttpError.
        """
        answer = self.ask(_request(path, body, token), limit_s)
        return answer.status, self._parsed(answer.status, answer.data)

    def watch(
        self, body: Any, token: str, limit_s: float, line_limit_s: float
    ) -> Generator[dict[str, Any], None, None]:
        """Yield the JSON objects of a watch's endless answer, one for each line.

        Ends after `limit_s` seconds. Raises HttpError, also if the member ends the answer. See
        `HttpConnection.lines`.
        """
        request = _request(_WATCH, body, token)
        with closing(self.lines(request, limit_s, line_limit_s)) as lines:
            for status, line in lines:
                if not line.endswith(b"\n"):
                    raise HttpError("it has ended a watch")
                yield self._parsed(status, line)

    def not_understood(self, why: UnreadableJsonError) -> HttpError:
        """Return the error for an answer that is not etcd's, and close the connection."""
        self.close()
        return HttpError(f"its answer is not understood: it {why}")

    def _parsed(self, status: int, data: bytes) -> dict[str, Any]:
        try:
            answer = read_object(data)
        except UnreadableJsonError as error:
            if status != 404:
                raise self._foreign(status, data, error) from None
            answer = {}
        if status != 404 or _OWN in str(answer.get("message")):
            return answer
        self.close()
        raise HttpError(
            "there is no JSON gateway of etcd's version 3: it is no etcd, or is older than "
            "3.4, or was started without it (enable-grpc-gateway)",
            is_lasting=True,
        )

    def _foreign(self, status: int, data: bytes, why: UnreadableJsonError) -> HttpError:
        if not why.is_text:
            return self.not_understood(why)
        self.close()
        begins = data[:_SHOWN_BYTES].decode("utf-8", "replace")
        return HttpError(
            f"it is no etcd: it answers {status}, {begins!r}", is_lasting=status not in _OF_A_PROXY
        )


def _request(path: str, body: Any, token: str) -> HttpRequest:
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = token
    if path == _WATCH:  # A member that is cut off from the others would be silent for ever.
        headers["Grpc-Metadata-hasleader"] = "true"
    return HttpRequest("POST", path, json.dumps(body).encode(), headers)


class Gateway:
    """The client of an etcd cluster.

    Blocks; for one thread at a time, except `abort`, which any thread may call.
    """

    def __init__(self, config: EtcdConfig, attempt_s: float = ATTEMPT_S) -> None:
        """Keep the configuration. Does no I/O."""
        self._config, self._attempt_s = config, attempt_s
        self._members: list[EtcdMember] = []
        self._at = 0
        """The index of the member to ask next: the one asked last, or the one after it if that
        failed."""
        self._token = ""
        self._is_open = False
        """Whether etcd has said that its authentication is off, so that no login is needed."""
        self._cluster = ""
        self.has_repeated = False
        """Whether the last call may have been executed by an attempt that failed, as when no
        answer came. If another attempt was answered, it may have been executed twice."""

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of the first member that answers.

        Raises RendezvousConnectionError, also for most refusals. Raises AccessError if a user,
        password or permission is wrong or missing, or the password file can't be read. Raises
        ParameterError if each endpoint has a lasting fault, as when it is no etcd, or if a file for
        TLS can't be used.
        """
        ends_at = time.monotonic() + LIMIT_S
        self.has_repeated = False
        failures: list[_Failure] = []
        for _ in self._config.endpoints:
            now = time.monotonic()
            attempt_ends_at = min(now + self._attempt_s, ends_at - STATUS_S)
            if attempt_ends_at <= now:
                break
            try:
                answer = self._ask(path, body, attempt_ends_at)
                self.has_repeated |= self._member.has_repeated
                return answer
            except HttpError as error:
                self.has_repeated |= error.was_sent
                failures.append(self._passed_over(error))
        raise self._failed(failures, ends_at)

    def watch(self, key: str, revision: int, seconds: float, end: str = "") -> bool:
        """Wait up to `seconds` for a change of a key from this revision on; False: there was none.

        True: there may be one. With `end` it watches all keys from `key` to before `end`. Asks one
        member only. Raises as `call`.
        """
        request = {"key": encoded(key), "start_revision": str(revision), "range_end": encoded(end)}
        begins_by = time.monotonic() + min(self._attempt_s, seconds)
        try:
            token, body = self._authenticated(begins_by), {"create_request": request}
            watching = self._member.watch(body, token, seconds, self._attempt_s)
            with closing(watching) as lines:
                for line in lines:
                    self._check("/v3/watch", body, line)
                    result = line.get("result", {})
                    if _is_unavailable(line):  # 3.5.16 says so before it closes, 3.4 only closes.
                        raise HttpError(_message(line["error"]))
                    if "error" in line or result.get("canceled") or result.get("events"):
                        return True
        except HttpError as error:
            ends_at = time.monotonic() + STATUS_S
            raise self._failed([self._passed_over(error)], ends_at) from error
        return False

    def abort(self) -> None:
        """End the call or watch of another thread, which then fails or ends early."""
        for member in self._members:
            member.abort()

    @property
    def _member(self) -> EtcdMember:
        if not self._members:
            tls = tls_context(self._config)
            self._members = [EtcdMember(endpoint, tls) for endpoint in self._config.endpoints]
        return self._members[self._at]

    def _ask(self, path: str, body: dict[str, Any], ends_at: float) -> dict[str, Any]:
        """Return the answer of the present member before `ends_at`.

        Log the user in first if necessary. Raises HttpError if another member may answer, and else
        as `call`.
        """
        for is_last in (False, True):
            token = self._authenticated(ends_at)
            status, answer = self._post(path, body, token, ends_at)
            if status == 200:
                self._check_cluster(answer)
                return answer
            if not is_last and token and _is_of_an_old_token(answer):
                self._token = ""
                continue
            raise self._refusal(answer, status)
        raise AssertionError

    def _post(
        self, path: str, body: dict[str, Any], token: str, ends_at: float
    ) -> tuple[int, dict[str, Any]]:
        """Return the HTTP status, and the answer, which is checked if the status is 200.

        Raises HttpError.
        """
        limit_s = max(ends_at - time.monotonic(), 0.001)
        status, answer = self._member.post(path, body, token, limit_s)
        if status == 200:
            self._check(path, body, answer)
        return status, answer

    def _check(self, path: str, body: dict[str, Any], answer: dict[str, Any]) -> None:
        try:
            check_answer(path, body, answer)
        except UnreadableJsonError as error:
            raise self._member.not_understood(error) from None

    def _authenticated(self, ends_at: float) -> str:
        """Return the login token, after a login if there is none yet.

        Empty: no login is needed, since no user is configured or etcd's authentication is off.
        """
        config = self._config
        if not config.user or self._token or self._is_open:
            return self._token
        body = {"name": config.user, "password": _password(config)}
        status, answer = self._post("/v3/auth/authenticate", body, "", ends_at)
        if status == 200:
            self._token = answer["token"]
        elif _AUTHENTICATION_IS_OFF in _message(answer):
            self._is_open = True
        else:
            raise self._refusal(answer, status)
        return self._token

    def _check_cluster(self, answer: dict[str, Any]) -> None:
        """Raise HttpError if the answer is from another etcd cluster than the answer before it."""
        headed = answer if "header" in answer else answer.get("result", {})
        cluster = str(headed.get("header", {}).get("cluster_id", ""))
        if self._cluster not in ("", cluster):
            self._member.close()
            raise HttpError("it is of another cluster than the members before", is_lasting=True)
        self._cluster = cluster

    def _refusal(self, answer: dict[str, Any], status: int) -> Exception:
        """Return the exception for an error answer: HttpError if another member may do better."""
        said, code = _message(answer), answer.get("code")
        user = f"the user {self._config.user!r}" if self._config.user else "a client without a user"
        if code in _UNAVAILABLE:
            return HttpError(said)
        if "lease not found" in said:
            return LeaseEndedError(f"etcd has ended the lease ({said})")
        if "authentication failed" in said:
            return AccessError(f"etcd does not know {user} {_with_password(self._config)}")
        if "user name is empty" in said or _is_of_an_old_token(answer):
            fix = f"give user=NAME in {named.rdzv_conf}, and its password"
            return AccessError(f"etcd wants a user ({said}): {fix}")
        if code == 7:
            return AccessError(f"{user} {_BY_CODE[7].format(prefix=self._config.prefix)}")
        why = _BY_CODE.get(int(code) if isinstance(code, int) else -1, "")
        return RendezvousConnectionError(
            f"etcd {why} ({said})" if why else f"etcd refuses a request: {said or status}"
        )

    def _passed_over(self, error: HttpError) -> _Failure:
        """Return the failure of the present member, and make the next member the one to ask."""
        where = self._config.endpoints[self._at]
        self._at = (self._at + 1) % len(self._config.endpoints)
        return _Failure(where, str(error), error.is_lasting)

    def _failed(self, failures: list[_Failure], ends_at: float) -> Exception:
        """Return the error for a call or watch that failed at each member that was asked.

        Unless all these failures are lasting, it asks the members until `ends_at` whether etcd has
        a leader; the first answer counts.
        """
        whys = {failure.why for failure in failures}
        each = "; ".join(f"{failure.endpoint}: {failure.why}" for failure in failures)
        if len(whys) == 1:
            each = f"{', '.join(failure.endpoint for failure in failures)}: {whys.pop()}"
        if failures and all(failure.is_lasting for failure in failures):
            return ParameterError(f"no etcd can be used: {each}")
        if self._has_no_leader(ends_at):
            return RendezvousConnectionError(
                f"etcd has no leader: most of its members are away, or can't reach each other "
                f"({each})"
            )
        return RendezvousConnectionError(f"no member of etcd answers: {each}")

    def _has_no_leader(self, ends_at: float) -> bool:
        for number, member in enumerate(self._members):
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                return False
            limit_s = min(STATUS_S, left_s / (len(self._members) - number))
            path = "/v3/maintenance/status"
            try:
                status, answer = member.post(path, {}, self._token, limit_s)
                if status == 200:
                    check_answer(path, {}, answer)
                    return bool(answer.get("leader", "0") == "0")
            except (HttpError, UnreadableJsonError):
                continue
        return False


def tls_context(config: EtcdConfig) -> SSLContext | None:
    """Return the TLS context for etcd; None without TLS.

    Raises ParameterError for files that can't be used.
    """
    if config.protocol != "https":
        return None
    return http.tls_context(config.cacert, config.cert, config.key)


def encoded(key: str | bytes) -> str:
    """Encode a key or value in base64, as the gateway requires."""
    return b64encode(key.encode() if isinstance(key, str) else key).decode()


def decoded(text: str) -> bytes:
    """Decode base64. Raises ValueError."""
    return b64decode(text, validate=True)


def _with_password(config: EtcdConfig) -> str:
    """Return the part of a message about a refused or missing password, with the fix."""
    if config.password_file:
        return f"with this password: see what is in password_file={config.password_file}"
    fix = f"password_file=FILE in {named.rdzv_conf}, or {password_variable('etcd')}"
    return (
        f"with this password: see {fix}" if config.password else f"without a password: give {fix}"
    )


def _password(config: EtcdConfig) -> str:
    """Return the password. A password file is read anew for each login, since it may change.

    Raises AccessError if the file can't be read.
    """
    if not config.password_file:
        return config.password
    try:
        with open(config.password_file) as file:
            return file.read().strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise AccessError(
            f"password_file={config.password_file}: can't be read: {error}"
        ) from error


def _message(answer: dict[str, Any]) -> str:
    return shown(str(answer.get("message") or answer.get("error") or "")[:_SHOWN])


def _is_unavailable(line: dict[str, Any]) -> bool:
    """Return whether a line of a watch says that its member can't serve it now; another may."""
    error = line.get("error")
    return isinstance(error, dict) and error.get("code", error.get("grpc_code")) in _UNAVAILABLE


def _is_of_an_old_token(answer: dict[str, Any]) -> bool:
    """Return whether the answer refuses a login token that is outdated or unknown to etcd."""
    said = _message(answer)
    return answer.get("code") == 16 or "auth token" in said or "auth store is old" in said
