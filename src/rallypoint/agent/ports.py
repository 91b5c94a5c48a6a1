"""Ports of this node for programs of its workers, reserved anew for each round."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from rallypoint.errors import InfrastructureError


def ports_wanted(env_styles: Sequence[str], workers: int) -> int:
    """Return how many ports a node with so many workers brings to a round.

    For JAX and TensorFlow, one is for a coordinator that the worker of rank 0 may serve. With
    TensorFlow there is one more for each worker, because the workers connect to each other. Other
    styles need none.
    """
    if "tensorflow" in env_styles:
        return 1 + workers
    return int("jax" in env_styles)


class ReservedPorts:
    """Reserved ports, which the system gives to no other program, but a worker's server can bind.

    Each is bound by a socket that never listens, with SO_REUSEADDR: Linux then lets another socket
    with SO_REUSEADDR bind it, as nearly every server does (gRPC, and so JAX and TensorFlow, among
    them), but uses it neither for a connection nor for an automatic port.
    """

    def __init__(self, count: int) -> None:
        """Reserve nothing yet; `count` is the number of ports that `renew` returns."""
        self._count = count
        self._held: list[socket.socket] = []

    def renew(self) -> tuple[int, ...]:
        """Reserve new ports that are free, and free the earlier ones; return the new numbers.

        Raises InfrastructureError.
        """
        former, self._held = self._held, []
        try:
            self._held += (_reserve() for _ in range(self._count))
        except OSError as error:
            raise InfrastructureError(
                f"no port for the programs of the workers: {error.strerror}"
            ) from error
        finally:
            for each in former:
                each.close()
        return tuple(each.getsockname()[1] for each in self._held)

    def close(self) -> None:
        """Free all ports. May be called again."""
        while self._held:
            self._held.pop().close()


def _reserve() -> socket.socket:
    """Return a socket that reserves a port on every address of this machine."""
    dual = socket.has_dualstack_ipv6()
    reserved = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
    try:
        if dual:
            reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
    except BaseException:
        reserved.close()
        raise
    return reserved
