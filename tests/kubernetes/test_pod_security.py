"""`rallypoint generate kubernetes`: its pods pass the Pod Security Standard `restricted`, as
pod_standard.py has it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from tests.kubernetes.pod_standard import RULES, broken, pods
from tests.kubernetes.stand_in import manifest

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
