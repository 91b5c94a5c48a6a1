"""Handlers by name: those that are built in, and those of other packages.

A package offers handlers as entry points of the group `rallypoint.handlers`: the name is the
backend's, and what it loads is a function without arguments that returns a creator, a callable
that makes a handler from RendezvousParameters.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points

from rallypoint.elastic.rendezvous.handler import RendezvousHandler
from rallypoint.elastic.rendezvous.parameters import RendezvousParameters
from rallypoint.errors import ParameterError, RendezvousPlugInError

GROUP = "rallypoint.handlers"
RENAMED, RENAMED_TO = "etcd-v2", "give 'etcd', with the same endpoint (it is API v3)"
RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]

_BUILT_IN = {
    "tcp": ("static_tcp_rendezvous", "create_handler_from"),
    "c10d": ("c10d_rendezvous_backend", "create_handler_from"),
    "file": ("c10d_rendezvous_backend", "create_handler_from"),
    "etcd": ("etcd_rendezvous_backend", "create_handler_from"),
    "static": ("static_tcp_rendezvous", "create_static_handler_from"),
}
"""Name -> the module, which is imported when it is asked for, and its function."""


class RendezvousHandlerRegistry:
    """Creators by backend name. Not shared between threads while it is changed."""

    def __init__(self) -> None:
        self._creators: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Offer `creator` as `backend`; again with the same one is allowed.

        Raises ParameterError for an empty name and for a name that another creator has.
        """
        if not backend:
            raise ParameterError("a rendezvous backend needs a name to be registered under")
        if self._creators.get(backend, creator) is not creator:
            raise ParameterError(
                f"the rendezvous backend {backend!r} is registered already, "
                f"by {self._creators[backend]!r}: choose another name"
            )
        self._creators[backend] = creator

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Make the handler of `params.backend`.

        Raises ParameterError for an unknown backend, with the known ones, and
        RendezvousPlugInError for a plug-in that can't be loaded or makes a handler of another name.
        """
        creator = self._creators.get(params.backend) or _built_in(params.backend)
        creator = creator or self._plug_in(params.backend)
        handler = creator(params)
        # The oldest handlers do not know their name.
        if hasattr(handler, "get_backend") and handler.get_backend() != params.backend:
            raise RendezvousPlugInError(
                f"the handler that was made for the rendezvous backend {params.backend!r} says "
                f"that it is {handler.get_backend()!r}: its get_backend must return the former"
            )
        return handler

    def _plug_in(self, backend: str) -> RendezvousHandlerCreator:
        offered = entry_points(group=GROUP)
        for entry in offered:
            if entry.name != backend:
                continue
            try:
                creator: RendezvousHandlerCreator = entry.load()()
            except Exception as error:
                raise RendezvousPlugInError(
                    f"the rendezvous backend {backend!r} of the package "
                    f"{entry.dist.name if entry.dist else '?'} ({entry.value}) could not be "
                    f"loaded: {type(error).__name__}: {error}"
                ) from error
            self._creators[backend] = creator
            return creator
        if backend == RENAMED:
            raise ParameterError(f"rendezvous backend {backend!r}: {RENAMED_TO}")
        known = sorted({*known_backends(), *self._creators})
        raise ParameterError(
            f"unknown rendezvous backend {backend!r}: known are {', '.join(known)}"
        )

    def registered(self) -> list[str]:
        """The names that this process has registered, and those of packages that it has used."""
        return sorted(self._creators)


def known_backends() -> list[str]:
    """The names of those that are built in, that installed packages offer, and that this process
    has registered."""
    offered = (entry.name for entry in entry_points(group=GROUP))
    return sorted({*_BUILT_IN, *offered, *rendezvous_handler_registry.registered()})


def _built_in(backend: str) -> RendezvousHandlerCreator | None:
    if backend not in _BUILT_IN:
        return None
    module, name = _BUILT_IN[backend]
    creator: RendezvousHandlerCreator = getattr(import_module(f"{__package__}.{module}"), name)
    return creator


rendezvous_handler_registry = RendezvousHandlerRegistry()
"""The registry of this process."""
handler_registry = rendezvous_handler_registry
"""Its other name in torch."""


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """The handler that `params` describe. Raises as `create_handler` does."""
    return rendezvous_handler_registry.create_handler(params)
