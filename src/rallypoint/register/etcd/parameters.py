"""The choice of an etcd: the endpoints, and keys of `--rdzv-conf`.

In the spelling of either of torch's etcd backends.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from rallypoint.errors import UsageError
from rallypoint.wire.address import Address, split_endpoint

DEFAULT_PORT = 2379
FIELDS = {
    "protocol": "protocol",
    "etcd_prefix": "prefix",
    "user": "user",
    "password": "password",
    "password_file": "password_file",
    "cacert": "cacert",
    "ca_cert": "cacert",
    "cert": "cert",
    "ssl_cert": "cert",
    "key": "key",
    "ssl_cert_key": "key",
}
"""The field of `EtcdConfig` for each key of `--rdzv-conf`; two keys may be for one field."""
_FILES = ("password_file", "cacert", "cert", "key")
_PROTOCOLS = ("http", "https")


class EtcdConfig(Struct, frozen=True):
    """The addresses of the members of an etcd, and the credentials for it. Paths are absolute."""

    endpoints: tuple[str, ...]
    """The members as HOST:PORT, with brackets around IPv6 addresses."""
    protocol: str = "http"
    """The scheme of all members: http or https."""
    prefix: str = "/rallypoint"
    """The prefix of all keys; it begins with a slash and does not end with one."""
    user: str = ""
    """The user name; empty: Rallypoint does not log in."""
    password: str = ""
    password_file: str = ""
    """The path of a file with the password, instead of `password`; empty: none."""
    cacert: str = ""
    """The file of the CA certificate; empty: the system's certificates."""
    cert: str = ""
    key: str = ""
    """The file of the private key for `cert`; empty: it is in the file `cert`, too."""

    def __str__(self) -> str:
        return ",".join(self.endpoints)

    def __repr__(self) -> str:
        """Return a text without the password."""
        return f"EtcdConfig({self}, prefix={self.prefix!r}, user={self.user!r})"


def read_etcd(
    endpoints: str,
    conf: Mapping[str, str],
    absolute_path: Callable[[str], str] = os.path.abspath,
) -> EtcdConfig:
    """Return the configuration of an etcd, from its endpoints and settings.

    `endpoints` are separated by commas. `conf` has keys of `FIELDS`. `absolute_path` makes paths of
    files absolute. Raises UsageError, whose text names what was given.
    """
    given: dict[str, Any] = {}
    for name, text in conf.items():
        field = FIELDS[name]
        if field in given:
            raise UsageError(f"{name}={text}: the same was given by another name")
        given[field] = absolute_path(text) if field in _FILES else text
    protocols = {given["protocol"]} if "protocol" in given else set()
    found = []
    for text in filter(None, map(str.strip, endpoints.split(","))):
        scheme, is_given, rest = text.rpartition("://")
        if is_given:
            protocols.add(scheme)
        found.append(_endpoint(rest.rstrip("/") if is_given else text))
    if not found:
        raise UsageError("needs the endpoints of etcd's members, HOST[:PORT],...")
    if len(protocols) > 1 or not protocols <= set(_PROTOCOLS):
        raise UsageError(f"protocol={' and '.join(sorted(protocols))}: needs one, http or https")
    given["protocol"] = protocol = protocols.pop() if protocols else "http"
    given["prefix"] = checked_prefix("etcd_prefix", given.get("prefix", "/rallypoint"))
    _check(given, protocol)
    return EtcdConfig(tuple(found), **given)


def checked_prefix(name: str, prefix: str) -> str:
    """Return the prefix of keys in etcd without a slash at its end.

    `name` is the setting, for the UsageError of an invalid prefix.
    """
    if not prefix.startswith("/") or not prefix.strip("/") or not prefix.isprintable():
        raise UsageError(f"{name}={prefix}: needs a path that begins with a slash")
    return prefix.rstrip("/")


def _endpoint(text: str) -> str:
    try:
        where = Address(*split_endpoint(text, DEFAULT_PORT))
    except ValueError as error:
        raise UsageError(f"{text}: {error}") from None
    if not where.port:
        raise UsageError(f"{text}: 0 is not a valid port (1..65535)")
    return str(where)


def _check(given: dict[str, Any], protocol: str) -> None:
    if protocol == "http":
        for field in ("cacert", "cert", "key"):
            if field in given:
                raise UsageError(f"{field}={given[field]}: add protocol=https, or leave it out")
    if "key" in given and "cert" not in given:
        raise UsageError(f"key={given['key']}: add cert=FILE, the certificate that it belongs to")
    if "password_file" in given and given.get("password"):
        raise UsageError("a password and a password_file: give one of the two")
    if "password_file" in given and "user" not in given:
        raise UsageError(f"password_file={given['password_file']}: add user=NAME")
