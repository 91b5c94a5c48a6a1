"""A command loads Python's TLS only when something uses it.

Importing asyncio imports `ssl`, which takes time at each start and 1.5 MB of each agent for as long
as its job runs. Few agents use TLS: those whose register is an etcd or an API server, and some with
plug-ins. For them nothing changes: `import ssl` gives the module as always, and asyncio's own
references load it when asyncio uses the first of its names.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from types import ModuleType

from rallypoint.cli import is_a_command


class _NoTlsSocket:
    """A stand-in for `ssl.SSLSocket` until `ssl` is imported: before that no socket can be one."""


class SslOfAsyncio(ModuleType):
    """The substitute for `ssl` in asyncio's modules.

    Asyncio asks of each socket whether it is an SSLSocket; any other name that it uses imports
    the real module.
    """

    def __getattr__(self, name: str) -> object:
        if name == "SSLSocket" and sys.modules.get("ssl", self) is self:
            return _NoTlsSocket
        if sys.modules.get("ssl") is self:  # Asyncio is just being imported.
            del sys.modules["ssl"]
        return getattr(import_module("ssl"), name)


class LateModule(ModuleType):
    """A module that was found, and is run when the first of its names is used.

    Then it becomes an ordinary one. Thread-safe.
    """

    def __getattr__(self, name: str) -> object:
        with _lock:
            if self.__class__ is LateModule and self.__spec__ not in _running:
                _running.append(self.__spec__)
                assert self.__spec__ is not None
                assert self.__spec__.loader is not None
                self.__spec__.loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
        if name not in self.__dict__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return self.__dict__[name]


_lock = threading.RLock()
_running: list[object] = []
"""The specs of late modules that have begun to run: their code may ask for names not yet there."""


def load_tls_late() -> None:
    """Import asyncio without `ssl`, in a command's process.

    Does nothing if either is imported already, and in a program that imports this package.
    """
    if not is_a_command() or sys.modules.keys() & {"asyncio", "ssl"}:
        return
    from importlib.machinery import PathFinder
    from importlib.util import find_spec, module_from_spec

    if (package := find_spec("asyncio")) is None:
        return
    spec = PathFinder.find_spec("asyncio.sslproto", package.submodule_search_locations)
    if find_spec("ssl") is None or spec is None:
        return
    protocol = sys.modules["asyncio.sslproto"] = module_from_spec(spec)
    protocol.__class__ = LateModule
    sys.modules["ssl"] = substitute = SslOfAsyncio("ssl")
    try:
        import asyncio
    finally:
        if sys.modules.get("ssl") is substitute:
            del sys.modules["ssl"]
    vars(asyncio)["sslproto"] = protocol
