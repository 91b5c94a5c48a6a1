"""The parameters that select a Kubernetes API server.

In a pod no parameter is needed: the namespace and the keys of `--rdzv-conf` are for other
namespaces, and for programs outside of a pod.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from rallypoint.core.text import named
from rallypoint.errors import ParameterError, UsageError
from rallypoint.register.engines import NotHereError
from rallypoint.wire.address import Address, split_endpoint

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The directory of the service account's files in a pod."""
_PORTS = {"http": 80, "https": 443}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_MAX_SUBDOMAIN = 253


class KubernetesConfig(Struct, frozen=True):
    """The address of an API server, and the directory with the credentials for it."""

    server: str
    """The URL: http:// or https://, HOST:PORT, and perhaps a path."""
    namespace: str = ""
    """The namespace of the registers; empty: the one that the file `namespace` names."""
    service_account: str = SERVICE_ACCOUNT
    """The absolute path of a directory with the files `token`, `ca.crt` and `namespace`."""

    def __str__(self) -> str:
        return self.server


def kubernetes_config(
    namespace: str = "", server: str = "", service_account: str = ""
) -> KubernetesConfig:
    """Return the configuration of a `KubernetesRendezvousBackend`; empty parameters: the pod's own.

    `server` is http[s]://HOST[:PORT][/PATH]. `service_account` is a directory with the files
    `token`, `ca.crt` and `namespace`. Reads the environment only. Raises ParameterError for an
    invalid value, or without `server` outside of a pod.
    """
    given = {"server": server, "service_account": service_account}
    conf = {name: text for name, text in given.items() if text}
    try:
        return read_kubernetes(namespace, conf)
    except UsageError as error:
        raise ParameterError(f"kubernetes_config: {error}") from None


def read_kubernetes(namespace: str, conf: Mapping[str, str]) -> KubernetesConfig:
    """Return the configuration of a namespace, from `conf` and the environment.

    `namespace`: empty for the pod's own. `conf` may have `server` and `service_account`. Raises
    UsageError, whose text names the given value, and NotHereError without a server outside of a
    pod.
    """
    if namespace and not is_label(namespace):
        raise UsageError(
            f"{namespace}: is not the name of a namespace (lower-case letters, digits and hyphens, "
            "at most 63)"
        )
    if not (server := conf.get("server") or pod_server()):
        raise NotHereError(
            "this is no pod (KUBERNETES_SERVICE_HOST is not set): run it in one, or give "
            f"{named.rdzv_conf} server=https://HOST:PORT,service_account=DIR, a directory with "
            "the files token, ca.crt and namespace"
        )
    folder = conf.get("service_account")
    account = os.path.abspath(folder) if folder else SERVICE_ACCOUNT
    return KubernetesConfig(_server(server), namespace, account)


def pod_server(environ: Mapping[str, str] | None = None) -> str:
    """Return the API server's URL from a pod's environment; empty outside of a pod."""
    environ = os.environ if environ is None else environ
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return ""
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def is_label(text: str) -> bool:
    """Return whether the text is a valid name of a namespace: a label of RFC 1123."""
    return _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Return whether the text is a valid name of most other objects: a subdomain of RFC 1123."""
    return len(text) <= _MAX_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


def _server(text: str) -> str:
    try:
        url = urlsplit(text)
        if url.scheme not in _PORTS or url.query or url.fragment or "@" in url.netloc:
            raise ValueError("needs http[s]://HOST[:PORT]")
        where = Address(*split_endpoint(url.netloc, _PORTS[url.scheme]))
    except ValueError as error:
        raise UsageError(f"server={text}: {error}") from None
    return f"{url.scheme}://{where}{url.path.rstrip('/')}"
