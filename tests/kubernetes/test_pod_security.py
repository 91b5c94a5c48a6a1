"""`rallypoint generate kubernetes`: its pods pass the Pod Security Standard `restricted`, whose
rules, also those of `baseline`, are written down here as the page of Kubernetes has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from tests.kubernetes.stand_in import manifest

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
BREAKS: dict[str, tuple[str, Any]] = {
    "no process of the host": ("securityContext.windowsOptions", {"hostProcess": True}),
    "no namespace of the host": ("hostPID", True),
    "not privileged": ("containers.0.securityContext.privileged", True),
    "no capability but one": ("containers.0.securityContext.capabilities", {"drop": ["KILL"]}),
    "volumes of these kinds": ("volumes.0", {"name": "a", "hostPath": {"path": "/"}}),
    "no port of the host": ("containers.0.ports", [{"containerPort": 1, "hostPort": 1}]),
    "no probe of another host": ("containers.0.livenessProbe.httpGet.host", "10.0.0.1"),
    "AppArmor is on": ("securityContext.appArmorProfile", {"type": "Unconfined"}),
    "SELinux is as it was": ("securityContext.seLinuxOptions", {"type": "spc_t"}),
    "/proc is as it was": ("containers.0.securityContext.procMount", "Unmasked"),
    "system calls are limited": ("securityContext.seccompProfile", {"type": "Unconfined"}),
    "harmless sysctls": ("securityContext.sysctls", [{"name": "kernel.msgmax", "value": "1"}]),
    "no more rights than its parent": (
        "containers.0.securityContext.allowPrivilegeEscalation",
        True,
    ),
    "not root, said so": ("securityContext.runAsNonRoot", False),
    "not root, by number": ("containers.0.securityContext.runAsUser", 0),
}
"""A change of a pod that is against each of them."""


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


@pytest.mark.parametrize("kind", ["--job", "--jobset", "--trainer"])
@pytest.mark.parametrize("more", [[], ["--user", "7", "--gpus", "8", "--memory", "1Gi"]], ids=str)
def test_the_pods_pass_the_restricted_standard(kind: str, more: list[str]) -> None:
    (pod,) = pods(manifest(kind, *more))
    assert broken(pod) == []


def test_pods_without_rights_pass_it_too() -> None:
    (pod,) = pods(manifest("--rdzv-backend", "tcp"))
    assert broken(pod) == []


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_finds_what_it_forbids(rule: str) -> None:
    (pod,) = deepcopy(pods(manifest()))
    path, value = BREAKS[rule]
    *parents, last = path.split(".")
    at: Any = pod
    for name in parents:
        at = at[int(name)] if isinstance(at, list) else at[name]
    at[int(last) if isinstance(at, list) else last] = value
    assert broken(pod) == [rule]
