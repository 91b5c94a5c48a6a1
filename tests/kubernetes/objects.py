"""What an API server of Kubernetes does with ConfigMaps: a store in memory, for `KubernetesApi`.

Each rule is one of the API reference, which docs/kubernetes.md names. Thread-safe.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rallypoint.errors import PortableError

Object = dict[str, Any]

MAX_DATA = 1 << 20
"""Bytes of all values of a ConfigMap."""
_MAX_NAME = 253
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_OWN = ("uid", "creationTimestamp", "namespace", "managedFields")
"""Metadata that an update can't change."""


class RefusedError(PortableError):
    """A `Status` in place of an answer."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


class Selector(NamedTuple):
    """Which of the ConfigMaps of a namespace are meant. Empty: all."""

    namespace: str
    labels: Mapping[str, str]
    name: str = ""

    def takes(self, found: Object) -> bool:
        metadata = found["metadata"]
        labels = metadata.get("labels", {}).items()
        return (
            metadata["namespace"] == self.namespace
            and self.name in ("", metadata["name"])
            and self.labels.items() <= labels
        )


class _Event(NamedTuple):
    version: int
    kind: str
    found: Object


class ConfigMaps:
    """Those of all namespaces."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._objects: dict[tuple[str, str], Object] = {}
        self._version = 1
        self._events: list[_Event] = []
        self._oldest = 0
        """Of the versions from which changes are still known."""
        self.bookmark_s = 1.0
        """So often one is sent to who wants them."""

    def read(self, namespace: str, name: str) -> Object:
        with self._changed:
            return deepcopy(self._existing(namespace, name))

    def create(self, namespace: str, sent: Object, manager: str, *, is_dry_run: bool) -> Object:
        found = _checked(sent, namespace, "")
        name = found["metadata"]["name"]
        with self._changed:
            if (namespace, name) in self._objects:
                raise RefusedError(409, "AlreadyExists", f'configmaps "{name}" already exists')
            metadata = {key: found["metadata"].get(key) for key in ("labels", "annotations")}
            found["metadata"] = {
                "name": name,
                "namespace": namespace,
                "uid": str(uuid.uuid4()),
                "creationTimestamp": _now(),
                **{key: value for key, value in metadata.items() if value},
            }
            _manage(found, manager)
            return self._stored("ADDED", found, is_dry_run=is_dry_run)

    def replace(
        self, selector: Selector, sent: Object, manager: str, *, is_dry_run: bool
    ) -> Object:
        namespace, name = selector.namespace, selector.name
        found = _checked(sent, namespace, name)
        with self._changed:
            there = self._existing(namespace, name)
            metadata = found["metadata"]
            _check_preconditions(there, metadata)
            metadata |= {key: there["metadata"][key] for key in _OWN if key in there["metadata"]}
            metadata["resourceVersion"] = there["metadata"]["resourceVersion"]
            if found == there:
                return deepcopy(there)  # Nothing is written for nothing.
            _manage(found, manager)
            return self._stored("MODIFIED", found, is_dry_run=is_dry_run)

    def remove(self, namespace: str, name: str, preconditions: Object) -> Object:
        with self._changed:
            there = self._existing(namespace, name)
            _check_preconditions(there, preconditions)
            self._stored("DELETED", deepcopy(there), is_dry_run=False)
        details = {"name": name, "kind": "configmaps", "uid": there["metadata"]["uid"]}
        head = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
        return {**head, "status": "Success", "details": details}

    def listed(self, selector: Selector, limit: int, following: str) -> Object:
        """`following`: what the answer before had as `continue`. All pages are of one version, as
        far as none of them changes."""
        with self._changed:
            version, after = str(self._version), ""
            if following:
                version, after = b64decode(following).decode().split(" ")
                self._check_known(int(version))
            names = sorted(key[1] for key, found in self._objects.items() if selector.takes(found))
            rest = [name for name in names if name > after]
            page = rest[: limit or None]
            metadata = {"resourceVersion": version}
            if len(page) < len(rest):
                metadata["continue"] = b64encode(f"{version} {page[-1]}".encode()).decode()
            items = [deepcopy(self._objects[selector.namespace, name]) for name in page]
        return {
            "kind": "ConfigMapList",
            "apiVersion": "v1",
            "metadata": metadata,
            "items": items,
        }

    def watch(
        self, selector: Selector, since: str, ends_at: float, is_over: Callable[[], bool]
    ) -> Iterator[Object]:
        """Changes after a version, and a bookmark now and then. Without a version: what is there,
        and then changes."""
        with self._changed:
            seen = int(since) if since not in ("", "0") else self._version
            self._check_known(seen)
            there = [] if since not in ("", "0") else list(map(deepcopy, self._objects.values()))
        yield from ({"type": "ADDED", "object": found} for found in there if selector.takes(found))
        while (now := time.monotonic()) < ends_at and not is_over():
            with self._changed:
                if self._version <= seen:
                    self._changed.wait(min(ends_at - now, self.bookmark_s))
                self._check_known(seen)
                new = [event for event in self._events if event.version > seen]
                seen = self._version
            for event in new:
                if selector.takes(event.found):
                    yield {"type": event.kind, "object": event.found}
            if not new:
                head = {"kind": "ConfigMap", "apiVersion": "v1"}
                metadata = {"resourceVersion": str(seen), "creationTimestamp": None}
                yield {"type": "BOOKMARK", "object": {**head, "metadata": metadata}}

    # What tests do to it

    def forget(self) -> None:
        """All changes so far, as an etcd does that is compacted: who wants them gets 410."""
        with self._changed:
            self._version += 1  # By something else.
            self._oldest, self._events = self._version, []
            self._changed.notify_all()

    def date(self, namespace: str, name: str, at: datetime | None) -> None:
        """As if it had been written then. None: it is not known when."""
        with self._changed:
            metadata = self._existing(namespace, name)["metadata"]
            if at is None:
                del metadata["managedFields"]
                return
            metadata["creationTimestamp"] = _text(at)
            for entry in metadata["managedFields"]:
                entry["time"] = _text(at)

    def wake(self) -> None:
        """Those that watch, to look whether it is over."""
        with self._changed:
            self._changed.notify_all()

    def _existing(self, namespace: str, name: str) -> Object:
        try:
            return self._objects[namespace, name]
        except KeyError:
            raise RefusedError(404, "NotFound", f'configmaps "{name}" not found') from None

    def _stored(self, kind: str, found: Object, *, is_dry_run: bool) -> Object:
        if is_dry_run:
            return found
        self._version += 1
        metadata = found["metadata"]
        metadata["resourceVersion"] = str(self._version)
        key = metadata["namespace"], metadata["name"]
        if kind == "DELETED":
            del self._objects[key]
        else:
            self._objects[key] = found
        self._events.append(_Event(self._version, kind, deepcopy(found)))
        self._changed.notify_all()
        return deepcopy(found)

    def _check_known(self, version: int) -> None:
        if version < self._oldest:
            raise RefusedError(
                410, "Expired", f"too old resource version: {version} ({self._oldest})"
            )


def _checked(sent: Object, namespace: str, name: str) -> Object:
    """A copy. `name`: of the URL."""
    found = deepcopy(sent)
    metadata = found.get("metadata") or {}
    if found.get("kind") != "ConfigMap" or found.get("apiVersion") != "v1":
        raise RefusedError(400, "BadRequest", "the object provided is unrecognized")
    if metadata.get("namespace", namespace) != namespace:
        why = "the namespace of the provided object does not match the namespace sent"
        raise RefusedError(400, "BadRequest", f"{why} on the request")
    own = metadata.get("name", "")
    if name and own != name:
        why = f"the name of the object ({own}) does not match the name on the URL ({name})"
        raise RefusedError(400, "BadRequest", why)
    if len(own) > _MAX_NAME or not _SUBDOMAIN.fullmatch(own):
        why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters"
        raise _invalid(own, f'metadata.name: Invalid value: "{own}": {why}')
    texts, binary = found.get("data") or {}, found.get("binaryData") or {}
    for key in (*texts, *binary):
        if not _DATA_KEY.fullmatch(key):
            raise _invalid(own, f'data[{key}]: Invalid value: "{key}": a valid config key must')
    if texts.keys() & binary.keys():
        raise _invalid(own, "binaryData: Invalid value: duplicate of key present in data")
    try:
        sizes = [len(b64decode(value, validate=True)) for value in binary.values()]
    except ValueError as error:
        raise RefusedError(400, "BadRequest", f"illegal base64 data: {error}") from error
    if sum(sizes) + sum(len(text.encode()) for text in texts.values()) > MAX_DATA:
        raise _invalid(own, f"[]: Too long: must have at most {MAX_DATA} bytes")
    return found


def _invalid(name: str, why: str) -> RefusedError:
    return RefusedError(422, "Invalid", f'ConfigMap "{name}" is invalid: {why}')


def _check_preconditions(there: Object, wanted: Mapping[str, Any]) -> None:
    """`uid` and `resourceVersion`, as far as they are given."""
    metadata = there["metadata"]
    head = f'Operation cannot be fulfilled on configmaps "{metadata["name"]}"'
    if wanted.get("uid") not in (None, "", metadata["uid"]):
        why = f"UID in precondition: {wanted['uid']}, UID in object meta: {metadata['uid']}"
        raise RefusedError(409, "Conflict", f"{head}: Precondition failed: {why}")
    if wanted.get("resourceVersion") not in (None, "", metadata["resourceVersion"]):
        why = "the object has been modified; please apply your changes to the latest version"
        raise RefusedError(409, "Conflict", f"{head}: {why} and try again")


def _manage(found: Object, manager: str) -> None:
    """Who has written it last, and when."""
    fields: Object = {f"f:{key}": {} for key in ("data", "binaryData") if key in found}
    entry: Object = {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": _now()}
    metadata = found["metadata"]
    others = [each for each in metadata.get("managedFields", []) if each["manager"] != manager]
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": fields}
    metadata["managedFields"] = [*others, entry]


def _now() -> str:
    return _text(datetime.now(UTC))


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
