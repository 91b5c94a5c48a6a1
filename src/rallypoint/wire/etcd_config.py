"""Which etcd has the register of a job. A guard is told it as well. Pure."""

from __future__ import annotations

from msgspec import Struct


class EtcdConfig(Struct, frozen=True):
    """How the members of an etcd are reached. Paths are absolute."""

    endpoints: tuple[str, ...]
    """Each as HOST:PORT, with brackets around IPv6."""
    protocol: str = "http"
    """Or https."""
    prefix: str = "/rallypoint"
    """Of all keys; it begins with a slash and does not end with one."""
    user: str = ""
    """Empty: etcd asks for none."""
    password: str = ""
    password_file: str = ""
    """In place of the password."""
    cacert: str = ""
    """Empty: whom the system trusts."""
    cert: str = ""
    key: str = ""
    """Empty: it is in the file of the certificate."""

    def __str__(self) -> str:
        return ",".join(self.endpoints)

    def __repr__(self) -> str:
        """Never shows the password."""
        return f"EtcdConfig({self}, prefix={self.prefix!r}, user={self.user!r})"
