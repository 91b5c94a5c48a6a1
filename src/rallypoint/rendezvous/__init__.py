"""How the nodes of a job agree on which of them take part, as a library with torch's vocabulary.

Importing this package imports nothing else; a name is imported when it is first asked for, so that
a program that needs one backend does not import the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.lazy import exports

if TYPE_CHECKING:
    from rallypoint.errors import (
        ParameterError,
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousPlugInError,
        RendezvousStateError,
        RendezvousTimeoutError,
        SettingsConflictError,
    )
    from rallypoint.rendezvous.backend import (
        BeatingBackend,
        ForgettingBackend,
        JoinRequestBackend,
        MemoryRendezvousBackend,
        RendezvousBackend,
        WakingBackend,
    )
    from rallypoint.rendezvous.c10d_backend import (
        DEFAULT_PORT,
        C10dRendezvousBackend,
        create_backend,
    )
    from rallypoint.rendezvous.dynamic import DynamicRendezvousHandler, create_handler
    from rallypoint.rendezvous.etcd.client import EtcdClient
    from rallypoint.rendezvous.etcd.server import EtcdServer
    from rallypoint.rendezvous.etcd.shared_backend import EtcdRendezvousBackend
    from rallypoint.rendezvous.etcd.store import EtcdStore
    from rallypoint.rendezvous.handler import (
        RendezvousClosedException,
        RendezvousHandler,
        RendezvousInfo,
        RendezvousNonRetryableError,
        RendezvousStoreInfo,
        RendezvousTimeoutException,
    )
    from rallypoint.rendezvous.kubernetes.backend import KubernetesRendezvousBackend
    from rallypoint.rendezvous.kubernetes.parameters import kubernetes_config
    from rallypoint.rendezvous.parameters import (
        RendezvousParameters,
        RendezvousSettings,
        RendezvousTimeout,
        parse_rendezvous_endpoint,
    )
    from rallypoint.rendezvous.registry import (
        RendezvousHandlerCreator,
        RendezvousHandlerRegistry,
        get_rendezvous_handler,
        handler_registry,
        rendezvous_handler_registry,
    )
    from rallypoint.rendezvous.tcp_handler import (
        CoordinatorRendezvousHandler,
        StaticRendezvousHandler,
        StaticTCPRendezvous,
        create_rdzv_handler,
    )

__all__ = [
    "BeatingBackend",
    "ForgettingBackend",
    "JoinRequestBackend",
    "RendezvousBackend",
    "WakingBackend",
    "C10dRendezvousBackend",
    "create_backend",
    "CoordinatorRendezvousHandler",
    "DynamicRendezvousHandler",
    "create_handler",
    "EtcdClient",
    "EtcdRendezvousBackend",
    "EtcdServer",
    "EtcdStore",
    "RendezvousClosedException",
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousNonRetryableError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutException",
    "MemoryRendezvousBackend",
    "KubernetesRendezvousBackend",
    "kubernetes_config",
    "RendezvousParameters",
    "RendezvousSettings",
    "RendezvousTimeout",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "get_rendezvous_handler",
    "rendezvous_handler_registry",
    "StaticRendezvousHandler",
    "StaticTCPRendezvous",
    "create_rdzv_handler",
    "DEFAULT_PORT",
    "handler_registry",
    "parse_rendezvous_endpoint",
    "ParameterError",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousPlugInError",
    "RendezvousStateError",
    "RendezvousTimeoutError",
    "SettingsConflictError",
]

__getattr__, __dir__ = exports(
    globals(),
    {
        "rallypoint.errors": (
            "ParameterError",
            "RendezvousClosedError",
            "RendezvousConnectionError",
            "RendezvousError",
            "RendezvousGracefulExitError",
            "RendezvousPlugInError",
            "RendezvousStateError",
            "RendezvousTimeoutError",
            "SettingsConflictError",
        ),
        ".backend": (
            "BeatingBackend",
            "ForgettingBackend",
            "JoinRequestBackend",
            "MemoryRendezvousBackend",
            "RendezvousBackend",
            "WakingBackend",
        ),
        ".c10d_backend": ("DEFAULT_PORT", "C10dRendezvousBackend", "create_backend"),
        ".tcp_handler": (
            "CoordinatorRendezvousHandler",
            "StaticRendezvousHandler",
            "StaticTCPRendezvous",
            "create_rdzv_handler",
        ),
        ".dynamic": ("DynamicRendezvousHandler", "create_handler"),
        ".etcd.client": ("EtcdClient",),
        ".etcd.server": ("EtcdServer",),
        ".etcd.shared_backend": ("EtcdRendezvousBackend",),
        ".etcd.store": ("EtcdStore",),
        ".handler": (
            "RendezvousClosedException",
            "RendezvousHandler",
            "RendezvousInfo",
            "RendezvousNonRetryableError",
            "RendezvousStoreInfo",
            "RendezvousTimeoutException",
        ),
        ".kubernetes.backend": ("KubernetesRendezvousBackend",),
        ".kubernetes.parameters": ("kubernetes_config",),
        ".parameters": (
            "RendezvousParameters",
            "RendezvousSettings",
            "RendezvousTimeout",
            "parse_rendezvous_endpoint",
        ),
        ".registry": (
            "RendezvousHandlerCreator",
            "RendezvousHandlerRegistry",
            "get_rendezvous_handler",
            "handler_registry",
            "rendezvous_handler_registry",
        ),
    },
)
