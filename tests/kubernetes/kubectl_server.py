"""What `kubectl` needs of an API server for the commands of the docs: it creates objects, applies
manifests, and follows the log of a Job. What was made is kept as objects.

`kubectl create` sends protocol buffers, of which only names and data are read here.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.harness.http_thread import HttpThread

Object = dict[str, Any]
GROUPS = {"api/v1": "", "apis/batch/v1": "batch", "apis/rbac.authorization.k8s.io/v1": "rbac"}
KINDS = {
    "api/v1": {
        "namespaces": "Namespace",
        "secrets": "Secret",
        "configmaps": "ConfigMap",
        "serviceaccounts": "ServiceAccount",
        "services": "Service",
        "pods": "Pod",
    },
    "apis/batch/v1": {"jobs": "Job"},
    "apis/rbac.authorization.k8s.io/v1": {"roles": "Role", "rolebindings": "RoleBinding"},
}
LOG = "rallypoint: job digits succeeded\n"
_MAGIC = b"k8s\0"


class KubectlServer(HttpThread):
    """`made`: the objects, by kind and name; each with the namespace of its request."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, str], Object] = {}
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, found = answer(self.command, self.path, body)
                data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
                kind = "text/plain" if isinstance(found, str) else "application/json"
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                pass

        super().__init__(Handler)

    def config(self, folder: Path) -> Path:
        """A file for KUBECONFIG."""
        here = {"name": "here"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [here | {"cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [here | {"user": {}}],
            "contexts": [here | {"context": {"cluster": "here", "user": "here"}}],
            "current-context": "here",
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def _answer(self, method: str, target: str, body: bytes) -> tuple[int, Object | str]:
        path = urlsplit(target).path.strip("/")
        if path in _ABOUT:
            return 200, _ABOUT[path]
        group = next((group for group in GROUPS if path.startswith(f"{group}/")), None)
        if group is None:
            return 404, _status(404, "NotFound", path)
        words = path.removeprefix(f"{group}/").split("/")
        namespace = words[1] if words[0] == "namespaces" and len(words) > 2 else ""
        words = words[2:] if namespace else words
        kind = KINDS[group][words[0]]
        if method == "POST":
            return 201, self._create(group, kind, namespace, body)
        if words[2:] == ["log"]:
            return 200, LOG
        if kind == "Pod" and len(words) == 1:
            return 200, self._pods(parse_qs(urlsplit(target).query)["labelSelector"][0])
        found = self.made.get((kind, words[1]))
        if found is not None and found["metadata"].get("namespace", "") == namespace:
            return 200, found
        return 404, _status(404, "NotFound", f"{words[0]} {words[1]} not found")

    def _create(self, group: str, kind: str, namespace: str, body: bytes) -> Object:
        made = _of_protobuf(kind, body) if body.startswith(_MAGIC) else json.loads(body)
        made |= {"apiVersion": group.split("/", 1)[1], "kind": kind}
        if namespace:
            made["metadata"]["namespace"] = namespace
        if kind == "Job":
            name = made["metadata"]["name"]
            made["spec"]["selector"] = {"matchLabels": {"batch.kubernetes.io/job-name": name}}
        self.made[kind, made["metadata"]["name"]] = made
        return dict(made)

    def _pods(self, selector: str) -> Object:
        """That of a Job of this name, which runs."""
        name = selector.rpartition("=")[2]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-0-x7"}}
        pod["metadata"] |= {"namespace": "training"}  # type: ignore[operator]
        pod |= {"spec": {"containers": [{"name": "node"}]}, "status": {"phase": "Running"}}
        return {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod]}


def _status(code: int, reason: str, message: str) -> Object:
    status = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": message}
    return status | {"reason": reason, "code": code}


def _resources(group: str) -> Object:
    rows = [
        {
            "name": name,
            "singularName": kind.lower(),
            "namespaced": kind != "Namespace",
            "kind": kind,
            "verbs": ["create", "get", "list", "patch"],
        }
        for name, kind in KINDS[group].items()
    ]
    version = group.split("/", 1)[1]
    return {"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": version} | {
        "resources": rows
    }


def _openapi(group: str) -> Object:
    """That the server itself looks for unknown fields."""
    *_, name, version = ["", *group.removeprefix("apis/").removeprefix("api/").split("/")]
    checks = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    paths = {}
    for kind in KINDS[group].values():
        which = {"group": name, "version": version, "kind": kind}
        patch = {"parameters": [checks], "x-kubernetes-group-version-kind": which}
        paths[f"/{group}/{kind}"] = {"patch": patch | {"responses": {}}}
    return {"openapi": "3.0.0", "info": {"title": "t", "version": "1"}, "paths": paths}


def _about() -> Iterator[tuple[str, Object]]:
    yield "version", {"major": "1", "minor": "32", "gitVersion": "v1.32.0"}
    yield "api", {"kind": "APIVersions", "versions": ["v1"]}
    groups = []
    for group in list(GROUPS)[1:]:
        _, name, version = group.split("/")
        found = {"groupVersion": f"{name}/{version}", "version": version}
        groups.append({"name": name, "versions": [found], "preferredVersion": found})
    yield "apis", {"apiVersion": "v1", "kind": "APIGroupList", "groups": groups}
    yield (
        "openapi/v3",
        {"paths": {group: {"serverRelativeURL": f"/openapi/v3/{group}"} for group in GROUPS}},
    )
    for group in GROUPS:
        yield group, _resources(group)
        yield f"openapi/v3/{group}", _openapi(group)


_ABOUT = dict(_about())


def _of_protobuf(kind: str, body: bytes) -> Object:
    """Name and data of an object in an envelope, whose field 2 is the object."""
    raw = dict(_fields(body[len(_MAGIC) :]))[2]
    fields = list(_fields(raw))
    name = dict(_fields(dict(fields)[1]))[1].decode()
    made: Object = {"metadata": {"name": name}}
    if kind == "Secret":
        pairs = [dict(_fields(value)) for number, value in fields if number == 2]
        made["data"] = {pair[1].decode(): b64encode(pair[2]).decode() for pair in pairs}
    return made


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Of a message: numbers, and the bytes of those that have any."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        length = number()
        if tag & 7 == 2:
            yield tag >> 3, data[at : at + length]
            at += length
