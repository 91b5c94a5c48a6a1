"""The rules of the Pod Security Standard `restricted`, with those of `baseline`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Spec = dict[str, Any]
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
CAPABILITIES = {"NET_BIND_SERVICE"}
SECCOMP = {"RuntimeDefault", "Localhost"}
APP_ARMOR = {"RuntimeDefault", "Localhost"}
SELINUX = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}


def containers(pod: Spec) -> list[Spec]:
    kinds = ("initContainers", "containers", "ephemeralContainers")
    return [each for kind in kinds for each in pod.get(kind, [])]


def contexts(pod: Spec) -> list[Spec]:
    """The security context of the pod, and that of each container."""
    return [each.get("securityContext", {}) for each in (pod, *containers(pod))]


def effective(pod: Spec, field: str) -> list[Any]:
    """The value that counts for each container: its own one, else that of the pod."""
    of_all, *own = contexts(pod)
    return [each.get(field, of_all.get(field)) for each in own]


def handlers(container: Spec) -> Iterator[Spec]:
    """The probes of a container, and what is called at the start and the end of its life."""
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        yield container.get(name, {})
    yield from container.get("lifecycle", {}).values()


def drops_all(container: Spec) -> bool:
    held = container.get("securityContext", {}).get("capabilities", {})
    return "ALL" in held.get("drop", []) and set(held.get("add", [])) <= CAPABILITIES


RULES: dict[str, Callable[[Spec], bool]] = {
    "no process of the host": lambda pod: (
        not any(each.get("windowsOptions", {}).get("hostProcess", False) for each in contexts(pod))
    ),
    "no namespace of the host": lambda pod: (
        not any(pod.get(name, False) for name in ("hostNetwork", "hostPID", "hostIPC"))
    ),
    "not privileged": lambda pod: not any(each.get("privileged") for each in contexts(pod)),
    "no capability but one": lambda pod: all(map(drops_all, containers(pod))),
    "volumes of these kinds": lambda pod: all(
        each.keys() - {"name"} <= VOLUMES for each in pod.get("volumes", [])
    ),
    "no port of the host": lambda pod: (
        not any(port.get("hostPort") for each in containers(pod) for port in each.get("ports", []))
    ),
    "no probe of another host": lambda pod: (
        not any(
            action.get("host")
            for container in containers(pod)
            for handler in handlers(container)
            for action in handler.values()
            if isinstance(action, dict)
        )
    ),
    "AppArmor is on": lambda pod: all(
        each.get("appArmorProfile", {"type": "RuntimeDefault"})["type"] in APP_ARMOR
        for each in contexts(pod)
    ),
    "SELinux is as it was": lambda pod: all(
        options.get("type", "") in SELINUX and not options.keys() & {"user", "role"}
        for options in (each.get("seLinuxOptions", {}) for each in contexts(pod))
    ),
    "/proc is as it was": lambda pod: all(
        each.get("procMount", "Default") == "Default" for each in contexts(pod)
    ),
    "system calls are limited": lambda pod: all(
        (each or {}).get("type") in SECCOMP for each in effective(pod, "seccompProfile")
    ),
    "harmless sysctls": lambda pod: (
        {each["name"] for each in contexts(pod)[0].get("sysctls", [])} <= SYSCTLS
    ),
    "no more rights than its parent": lambda pod: all(
        each.get("allowPrivilegeEscalation") is False for each in contexts(pod)[1:]
    ),
    "not root, said so": lambda pod: all(each is True for each in effective(pod, "runAsNonRoot")),
    "not root, by number": lambda pod: (
        not any(each.get("runAsUser") == 0 for each in contexts(pod))
    ),
}
"""The rules of the standard by short names. A rule returns whether a pod keeps it."""


def pods(value: Any) -> list[Spec]:
    """All specifications of pods within an object."""
    if isinstance(value, list):
        return [found for each in value for found in pods(each)]
    if not isinstance(value, dict):
        return []
    own = [value] if "containers" in value else []
    return own + [found for each in value.values() for found in pods(each)]


def broken(pod: Spec) -> list[str]:
    return [name for name, holds in RULES.items() if not holds(pod)]
