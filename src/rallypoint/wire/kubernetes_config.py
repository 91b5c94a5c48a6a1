"""Which API server of Kubernetes has the register of a job. A guard is told it as well. Pure."""

from __future__ import annotations

from msgspec import Struct

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod finds the files of its service account."""


class KubernetesConfig(Struct, frozen=True):
    """How an API server is reached, and as whom."""

    server: str
    """http:// or https://, HOST:PORT, and perhaps a path."""
    namespace: str = ""
    """Of the registers; empty: the one that the file `namespace` names."""
    service_account: str = SERVICE_ACCOUNT
    """The absolute path of a directory with the files `token`, `ca.crt` and `namespace`."""

    def __str__(self) -> str:
        return self.server
