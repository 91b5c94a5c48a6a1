"""A stand-in for the API server of Kubernetes: ConfigMaps over HTTP/1.1 and TLS, for tests.

    with KubernetesApi("server.pem", "server.key") as api:
        for each in yaml.safe_load_all(rbac):      # what `rallypoint generate rbac` has printed
            api.apply(each)
        token = api.token("default", "rallypoint")
        ...                                        # a job, by server=api.url
        api.stop()                                 # it is away; what it holds stays
        api.start()

It knows who asks (tokens of service accounts), what they may do (Roles and RoleBindings), and what
an API server does with ConfigMaps (`kubernetes_objects`). It is no Kubernetes: docs/kubernetes.md
says which of its rules are confirmed, and by what.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.kubernetes.objects import ConfigMaps, Object, RefusedError, Selector

MAX_REQUEST = 3 << 20
"""Bytes of a body."""
WATCH_S = 1800.0
_PATH = re.compile(r"/api/v1/namespaces/([^/]+)/configmaps(?:/([^/]+))?")
_VERBS = {"POST": "create", "PUT": "update", "DELETE": "delete"}
_ANONYMOUS = "system:anonymous"
_PARTIAL = "as=PartialObjectMetadataList"


class Fault(NamedTuple):
    """What happens to one request."""

    method: str
    status: int
    """In place of an answer; 0: it is executed, and the answer is lost."""
    headers: tuple[tuple[str, str], ...] = ()
    text: bytes = b""
    """In place of a `Status`."""
    meanwhile: Callable[[], None] | None = None
    """Called when it was executed, before the answer is lost."""


class Asked(NamedTuple):
    """One request, as far as it has to do with ConfigMaps."""

    method: str
    namespace: str
    name: str
    query: dict[str, str]
    manager: str

    @property
    def verb(self) -> str:
        """As roles have it."""
        if self.method != "GET":
            return _VERBS[self.method]
        if self.name:
            return "get"
        return "watch" if self.query.get("watch") in ("1", "true") else "list"


class KubernetesApi:
    """For `with`: one server, in threads of this process."""

    def __init__(
        self,
        cert: str,
        key: str,
        namespaces: tuple[str, ...] = ("default",),
        host: str = "127.0.0.1",
    ) -> None:
        """`cert`, `key`: files; the certificate must name the host. Empty: there is no TLS, as
        before a `kubectl proxy`. `host`: an address of this machine."""
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if cert else None
        if self._tls is not None:
            self._tls.load_cert_chain(cert, key)
        self._server: _Server | None = None
        self._tokens: dict[str, str] = {}
        self._applied: dict[tuple[str, str, str], Object] = {}
        self.config_maps = ConfigMaps()
        self.namespaces = {*namespaces}
        self.slow_s = 0.0
        """Every answer takes so long."""
        self.faults: deque[Fault] = deque()
        """Of the next requests with their methods, in order."""
        self.requests: deque[str] = deque(maxlen=10_000)
        """`VERB NAME` of those that were let in."""
        self.host, self.port = host, 0

    def __enter__(self) -> KubernetesApi:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """For `server=`."""
        return f"{'http' if self._tls is None else 'https'}://{self.host}:{self.port}"

    def start(self) -> None:
        """Again at the same port, with what it held."""
        if self._server is None:
            self._server = _Server((self.host, self.port), self._tls, partial(_Handler, self))
            self.port = self._server.server_address[1]

    def stop(self) -> None:
        """All connections are closed, and no new ones are taken."""
        server, self._server = self._server, None
        if server is not None:
            server.end()
            self.config_maps.wake()

    def token(self, namespace: str, account: str) -> str:
        """A new one of a service account. Those before stay valid."""
        token = secrets.token_urlsafe()
        self._tokens[token] = f"system:serviceaccount:{namespace}:{account}"
        return token

    def revoke(self, token: str) -> None:
        """Its time is over."""
        del self._tokens[token]

    def apply(self, found: Object) -> None:
        """A ServiceAccount, Role or RoleBinding."""
        metadata = found["metadata"]
        self._applied[found["kind"], metadata["namespace"], metadata["name"]] = found

    def withdraw(self, kind: str, namespace: str, name: str) -> Object:
        """What was applied."""
        return self._applied.pop((kind, namespace, name))

    def user(self, authorization: str) -> str:
        """Who asks. Raises RefusedError."""
        kind, _, token = authorization.partition(" ")
        if not authorization:
            return _ANONYMOUS
        if kind != "Bearer" or token not in self._tokens:
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        return self._tokens[token]

    def authorize(self, user: str, asked: Asked) -> None:
        """Raises RefusedError."""
        for binding in [*self._applied.values()]:
            if binding["kind"] != "RoleBinding":
                continue
            namespace = binding["metadata"]["namespace"]
            subjects = map(_user_of, binding["subjects"])
            role = self._applied.get(("Role", namespace, binding["roleRef"]["name"]), {"rules": []})
            is_of_it = namespace == asked.namespace and user in subjects
            if is_of_it and any(_lets(rule, asked) for rule in role["rules"]):
                return
        what = f'configmaps "{asked.name}"' if asked.name else "configmaps"
        raise RefusedError(
            403,
            "Forbidden",
            f'{what} is forbidden: User "{user}" cannot {asked.verb} resource "configmaps" in API '
            f'group "" in the namespace "{asked.namespace}"',
        )

    def execute(self, asked: Asked, body: Object) -> Object:
        """All but a watch. Raises RefusedError."""
        self.requests.append(f"{asked.verb} {asked.name}")
        if asked.namespace not in self.namespaces and asked.method == "POST":
            raise RefusedError(404, "NotFound", f'namespaces "{asked.namespace}" not found')
        objects, is_dry_run = self.config_maps, asked.query.get("dryRun") == "All"
        match asked.verb:
            case "get":
                return objects.read(asked.namespace, asked.name)
            case "list":
                limit = int(asked.query.get("limit", "0"))
                return objects.listed(selector(asked), limit, asked.query.get("continue", ""))
            case "create":
                return objects.create(asked.namespace, body, asked.manager, is_dry_run=is_dry_run)
            case "update":
                where = Selector(asked.namespace, {}, asked.name)
                return objects.replace(where, body, asked.manager, is_dry_run=is_dry_run)
        preconditions = body.get("preconditions") or {}
        return objects.remove(asked.namespace, asked.name, preconditions)

    def fault(self, method: str) -> Fault | None:
        """What happens to this request."""
        with suppress(IndexError):
            if self.faults[0].method == method:
                return self.faults.popleft()
        return None

    def watch(self, asked: Asked, is_over: Callable[[], bool]) -> Iterator[Object]:
        """Until its time is over, or the connection's."""
        self.requests.append("watch ")
        seconds = float(asked.query.get("timeoutSeconds", WATCH_S))
        since = asked.query.get("resourceVersion", "")
        ends_at = time.monotonic() + seconds
        for event in self.config_maps.watch(selector(asked), since, ends_at, is_over):
            if event["type"] != "BOOKMARK" or asked.query.get("allowWatchBookmarks") == "true":
                yield event


def selector(asked: Asked) -> Selector:
    """Of a list or a watch."""
    labels = filter(None, asked.query.get("labelSelector", "").split(","))
    pairs = dict(label.split("=", 1) for label in labels)
    field, _, name = asked.query.get("fieldSelector", "").partition("=")
    if field not in ("", "metadata.name"):
        raise RefusedError(400, "BadRequest", f"field label not supported: {field}")
    return Selector(asked.namespace, pairs, name)


def _user_of(subject: Object) -> str:
    if subject["kind"] == "User":
        return str(subject["name"])
    return f"system:serviceaccount:{subject['namespace']}:{subject['name']}"


def _lets(rule: Object, asked: Asked) -> bool:
    names = rule.get("resourceNames")
    # A list or a watch of one name by a selector is one of that name.
    name = asked.name or asked.query.get("fieldSelector", "").removeprefix("metadata.name=")
    return (
        "" in rule["apiGroups"]
        and "configmaps" in rule["resources"]
        and asked.verb in rule["verbs"]
        and (not names or name in names)
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        where: tuple[str, int],
        tls: ssl.SSLContext | None,
        handler: Callable[..., BaseHTTPRequestHandler],
    ) -> None:
        super().__init__(where, handler)
        self._tls = tls
        self._open: set[socket.socket] = set()
        self.is_over = False
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        self.is_over = True
        self.shutdown()
        self._thread.join()
        for connection in [*self._open]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """The handshake is done by the connection's own thread, when it reads."""
        connection, address = self.socket.accept()
        if self._tls is not None:
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        self._open = {each for each in self._open if each.fileno() >= 0} | {connection}
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is nobody's error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def __init__(self, api: KubernetesApi, *arguments: Any) -> None:
        self._api = api
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PUT = do_DELETE = do_PATCH = do_GET  # noqa: N815

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nobody reads it."""

    def _answer(self) -> None:
        api, fault = self._api, self._api.fault(self.command)
        try:
            sent = self._body()
            if api.slow_s:
                time.sleep(api.slow_s)
            if fault is not None and fault.status:
                self._fail(fault)
                return
            asked = self._asked()
            api.authorize(api.user(self.headers.get("Authorization", "")), asked)
            if asked.verb == "watch":
                self._watch(asked)
                return
            found = api.execute(asked, json.loads(sent or b"{}") or {})
            if _PARTIAL in self.headers.get("Accept", "") and asked.verb == "list":
                found = _partial(found)
            if fault is not None:
                self.close_connection = True  # It was executed, and nobody hears of it.
                if fault.meanwhile is not None:
                    fault.meanwhile()
                return
            self._say(201 if asked.verb == "create" else 200, found)
        except RefusedError as refused:
            self._say(refused.code, refused.status())

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length", "0"))
        sent = self.rfile.read(length)
        if length > MAX_REQUEST:
            why = f"Request entity too large: limit is {MAX_REQUEST}"
            raise RefusedError(413, "RequestEntityTooLarge", why)
        return sent

    def _asked(self) -> Asked:
        url = urlsplit(self.path)
        where = _PATH.fullmatch(url.path)
        if where is None:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        manager = self.headers.get("User-Agent", "").partition("/")[0]
        name = unquote(where[2] or "")
        is_known = self.command == "GET" or self.command in _VERBS
        if not is_known or (self.command != "GET" and (self.command == "POST") == bool(name)):
            why = "the server does not allow this method on the requested resource"
            raise RefusedError(405, "MethodNotAllowed", why)
        return Asked(self.command, unquote(where[1]), name, dict(parse_qsl(url.query)), manager)

    def _watch(self, asked: Asked) -> None:
        events = self._api.watch(asked, lambda: self.server.is_over)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in events:
                self._chunk(json.dumps(event).encode() + b"\n")
        except RefusedError as refused:
            event = {"type": "ERROR", "object": refused.status()}
            self._chunk(json.dumps(event).encode() + b"\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _fail(self, fault: Fault) -> None:
        refused = RefusedError(fault.status, "", "as the test wants it")
        data = fault.text or json.dumps(refused.status()).encode()
        self._send(fault.status, data, fault.headers)

    def _say(self, status: int, found: Object) -> None:
        self._send(status, json.dumps(found).encode())

    def _send(self, status: int, data: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, text in headers:
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)


def _partial(listed: Object) -> Object:
    head = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    items = [{**head, "metadata": found["metadata"]} for found in listed["items"]]
    kind = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
    return {**kind, "metadata": listed["metadata"], "items": items}
