"""ConfigMaps of one namespace, through the API server of Kubernetes.

A call without an answer may have been executed, or may be executed later. So each call is one that
may be repeated: a read, a write whose author recognises its own version by a nonce, or the deletion
of one version.

The token and the CA certificate are files that the kubelet replaces while a pod runs: the token is
read for each request, the certificate for each request without an open connection.
"""

from __future__ import annotations

import json
import os.path
import re
import time
from collections.abc import Generator, Mapping
from email.utils import parsedate_to_datetime
from http.client import HTTPMessage
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict
from urllib.parse import quote, urlencode, urlsplit

from rallypoint.core.json_reader import UnreadableJsonError, check_kind, read_object
from rallypoint.core.text import named, shown
from rallypoint.errors import AccessError, ParameterError, RendezvousConnectionError
from rallypoint.register.http import (
    HttpConnection,
    HttpError,
    HttpReply,
    HttpRequest,
    ServerKind,
    tls_context,
)
from rallypoint.register.kubernetes.parameters import KubernetesConfig

if TYPE_CHECKING:
    from datetime import datetime

Object = dict[str, Any]
Query = Mapping[str, str]

NONE: Query = {}
LIMIT_S = 5.0
"""The default time limit of a call in seconds: half the usual time for which a leader may act
without writing its record."""

_KIND = ServerKind("no API server of Kubernetes", "server=http://...", "server=https://...")
_ANSWERS = (200, 201, 404, 409, 410)
_PAUSE_S = 1.0
"""The pause in seconds after an answer 429 or 503, if the server names none in seconds."""
_NOT_NOW = (429, 503)
_OF_A_PROXY = (500, 502, 503, 504)
"""The HTTP statuses of a proxy whose API server is unreachable."""
_MAX_PAUSE_S = 10.0
"""The longest pause in seconds, whatever the server asks for: a leader must write."""
_METADATA_ONLY = (
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json"
)
_USER = re.compile(r'User "([^"]*)" cannot (\w+) resource')
_SERVICE_ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")


_SHOWN = 300
"""The number of characters after which a shown message of the API server is cut."""


class _Changed(TypedDict):
    time: NotRequired[str | None]


class _Metadata(TypedDict):
    """The metadata fields that are used; a list has some of them."""

    name: NotRequired[str]
    uid: NotRequired[str]
    resourceVersion: NotRequired[str]
    managedFields: NotRequired[list[_Changed] | None]


_Continued = TypedDict("_Continued", {"continue": NotRequired[str | None]})


class _ListMetadata(_Metadata, _Continued):
    pass


class _Item(TypedDict):
    metadata: _Metadata


class _Answered(TypedDict):
    """An object, a list, an error status or a watch event, with the fields that are used."""

    metadata: NotRequired[_ListMetadata]
    items: NotRequired[list[_Item] | None]
    message: NotRequired[str | None]


class Reply(NamedTuple):
    """An answer of the API server with an expected status."""

    status: int
    """The HTTP status: 200, 201, 404, 409 or 410."""
    body: Object
    at: datetime | None
    """The time of the answer by the API server's clock; None: it is not known."""

    @property
    def items(self) -> list[Object]:
        """The objects, if the answer is a list; else empty."""
        return self.body.get("items") or []


class ApiServer:
    """The client of an API server, for the ConfigMaps of one namespace.

    Blocks; for one thread at a time, except `abort`, which any thread may call.
    """

    def __init__(self, config: KubernetesConfig, limit_s: float = LIMIT_S) -> None:
        """Keep the configuration. Does no I/O."""
        self._config, self._limit_s = config, limit_s
        self._http: HttpConnection | None = None
        self._namespace = config.namespace
        self._not_before = 0.0
        """The monotonic time before which the server wants no request."""
        self.has_repeated = False
        """Whether the last call may have been executed by an attempt without an answer, or with
        the answer 503, before the last attempt."""

    @property
    def namespace(self) -> str:
        """The namespace of the registers: the configured one, or else that in the file `namespace`.

        Raises ParameterError if that file can't be read.
        """
        if not self._namespace:
            self._namespace = self._file("namespace")
        return self._namespace

    def call(
        self, method: str, name: str = "", body: Object | None = None, query: Query = NONE
    ) -> Reply:
        """Send a GET, POST, PUT or DELETE for the ConfigMap `name`.

        Without a name: a GET lists them, and a POST creates one. Returns an answer with one of the
        statuses of `Reply`. Raises RendezvousConnectionError if no such answer comes, and
        AccessError if the service account's token is refused, or may not do that. Raises
        ParameterError for a lasting fault: the server is no API server or not trusted, or the
        namespace or a file of the service account is missing.
        """
        ends_at = time.monotonic() + self._limit_s
        self.has_repeated = False
        while True:
            self._wait(ends_at)
            token = self._token()
            request = self._request(method, name, body, token, query)
            answer = self._answer(request, max(ends_at - time.monotonic(), 0.001))
            if answer.status in _NOT_NOW:
                self._not_before = time.monotonic() + _pause_s(answer)
                if self._not_before < ends_at:
                    continue
            elif answer.status == 401 and self._token() != token:
                continue  # It was replaced meanwhile.
            return self._reply(answer)

    def watch(self, seconds: float, query: Query) -> Generator[Object, None, None]:
        """Yield changes of the namespace's ConfigMaps, as the API server sends them.

        Ends after `seconds`, or earlier. `query` selects the ConfigMaps. An event of the type ERROR
        has the failure as its `object`. Raises as `call`.
        """
        watching = {"watch": "1", "timeoutSeconds": str(int(seconds) + 1)}
        request = self._request("GET", "", None, self._token(), {**query, **watching})
        try:
            for status, line in self._connected().lines(request, seconds, self._limit_s):
                if not line:
                    return
                if status == 200:
                    yield _parsed(line)
                else:
                    reply = self._reply(HttpReply(status, HTTPMessage(), line))
                    yield {"type": "ERROR", "object": reply.body}
        except UnreadableJsonError:
            return  # It was cut off.
        except HttpError as error:
            raise self._failed(error) from error

    def abort(self) -> None:
        """End the call or watch of another thread, which then fails or ends early."""
        if self._http is not None:
            self._http.abort()

    def _wait(self, ends_at: float) -> None:
        left_s = self._not_before - time.monotonic()
        if self._not_before >= ends_at:
            raise RendezvousConnectionError(
                self._of(f"it is overloaded, and wants no request for {left_s:.1f} s")
            )
        time.sleep(max(left_s, 0.0))

    def _answer(self, request: HttpRequest, limit_s: float) -> HttpReply:
        http = self._connected()
        try:
            answer = http.ask(request, limit_s)
        except HttpError as error:
            raise self._failed(error) from error
        self.has_repeated |= http.has_repeated or answer.status == 503
        return answer

    def _connected(self) -> HttpConnection:
        if self._http is None or not self._http.is_open:
            url = urlsplit(self._config.server)
            tls = tls_context(self._path("ca.crt")) if url.scheme == "https" else None
            self._http = HttpConnection(url.netloc, tls, _KIND)
        return self._http

    def _request(
        self, method: str, name: str, body: Object | None, token: str, query: Query
    ) -> HttpRequest:
        path = f"{urlsplit(self._config.server).path}/api/v1/namespaces/{quote(self.namespace)}"
        path += "/configmaps"
        if name:
            path += "/" + quote(name)
        if query:
            path += "?" + urlencode(query)
        accept = _METADATA_ONLY if "labelSelector" in query else "application/json"
        headers = {"Accept": accept, "User-Agent": "rallypoint"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is None:
            return HttpRequest(method, path, None, headers)
        headers["Content-Type"] = "application/json"
        return HttpRequest(method, path, json.dumps(body).encode(), headers)

    def _token(self) -> str:
        """Return the service account's token; empty if there is none and the server is plain HTTP.

        A proxy without TLS sends its own token.
        """
        if self._config.server.startswith("http:") and not os.path.exists(self._path("token")):
            return ""
        return self._file("token")

    def _file(self, name: str) -> str:
        try:
            with open(self._path(name)) as file:
                return file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ParameterError(
                f"there is no service account: {self._path(name)}: {why}: see that the pod has one "
                f"(automountServiceAccountToken), or give {named.rdzv_conf} service_account=DIR"
            ) from error

    def _path(self, name: str) -> str:
        return os.path.join(self._config.service_account, name)

    def _reply(self, answer: HttpReply) -> Reply:
        """Return the reply for an expected status; raise the error for any other answer."""
        try:
            body = _parsed(answer.data)
        except UnreadableJsonError as error:
            self._drop()
            if not error.is_text:
                text = f"its answer is not understood: it {error}"
                raise RendezvousConnectionError(self._of(text)) from None
            begins = answer.data[:60].decode("utf-8", "replace")
            text = f"it is {_KIND.name}: it answers {answer.status}, {begins!r}"
            if answer.status in _OF_A_PROXY:
                raise RendezvousConnectionError(self._of(text)) from None
            raise ParameterError(self._of(text)) from None
        said = shown((body.get("message") or "")[:_SHOWN])
        if answer.status == 404 and "namespaces" in said:
            raise ParameterError(f"there is no namespace {self.namespace} ({said})")
        if answer.status in _ANSWERS:
            return Reply(answer.status, body, _date(answer))
        if answer.status == 401:
            raise AccessError(
                f"the API server {self._config} does not accept the token in {self._path('token')}"
                f" ({said}): it has ended, or is another cluster's"
            )
        if answer.status == 403 and (denied := _USER.search(said)):
            raise AccessError(self._forbidden(denied[1], denied[2]))
        raise RendezvousConnectionError(self._of(f"it answers {answer.status} ({said})"))

    def _forbidden(self, user: str, verb: str) -> str:
        who, grantee = f"the user {user}", "NAME"
        if account := _SERVICE_ACCOUNT.fullmatch(user):
            space, name = account.groups()
            who = f"the service account {name} of the namespace {space}"
            grantee = name if space == self.namespace else f"{space}:{name}"
        hint = ""
        if verb == "create":
            hint = "; none is needed for a ConfigMap that was made before"
        return (
            f"{who} may not {verb} configmaps in the namespace {self.namespace}: `rallypoint "
            f"generate rbac --namespace {self.namespace} --service-account {grantee} | kubectl "
            f"apply -f -` lets it{hint}"
        )

    def _drop(self) -> None:
        """Drop the connection; the next call opens another one."""
        if self._http is not None:
            self._http.close()

    def _failed(self, error: HttpError) -> Exception:
        kind = ParameterError if error.is_lasting else RendezvousConnectionError
        return kind(self._of(str(error)))

    def _of(self, why: str) -> str:
        return f"the API server {self._config} can't be used: {why}"


def _parsed(data: bytes) -> Object:
    """Parse an object. Raises UnreadableJsonError for what no API server sends."""
    body = read_object(data)
    if not {"kind", "type"} & body.keys():
        raise UnreadableJsonError("is not an object of Kubernetes")
    check_kind(body, _Answered)
    return body


def _pause_s(answer: HttpReply) -> float:
    """Return the pause in seconds for which the answer asks, but 0.1 to 10 s; 1 s if for none."""
    text = answer.headers.get("Retry-After", "")
    return min(max(float(text), 0.1), _MAX_PAUSE_S) if text.isdecimal() else _PAUSE_S


def _date(answer: HttpReply) -> datetime | None:
    try:
        return parsedate_to_datetime(answer.headers["Date"])
    except (KeyError, TypeError, ValueError, OverflowError, IndexError):
        return None
