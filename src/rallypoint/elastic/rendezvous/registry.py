"""The registry of rendezvous handlers."""

from __future__ import annotations

from rallypoint.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousParameters,
    rendezvous_handler_registry,
)

handler_registry = rendezvous_handler_registry
"""Torch's second name of `rendezvous_handler_registry`."""


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Return the handler that `params` describe.

    Raises as `create_handler` of the registry does.
    """
    return handler_registry.create_handler(params)
