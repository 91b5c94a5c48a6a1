"""docs/kubernetes.md: its commands are run as printed, by kubectl itself on a stand-in of an API
server; its YAML is validated. tests/pods runs the command of the agents."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.docs.page import blocks, commands
from tests.harness.limits import patience
from tests.kubernetes.kubectl_server import LOG, KubectlServer
from tests.kubernetes.pod_standard import broken, pods

LINES = [
    line
    for block in blocks("kubernetes.md")
    for line in commands(block)
    if line.startswith(("kubectl", "rallypoint generate", "rallypoint token"))
    and not line.startswith("kubectl exec")  # The stand-in has no pods that run.
]
(OVERLAY,) = [block for block in blocks("kubernetes.md") if "# kustomization.yaml" in block]
OF_A_JOB = {"ConfigMap", "ServiceAccount", "Role", "RoleBinding", "Service", "Job"}
MADE_BY = {
    "kubectl create namespace": {"Namespace"},
    "create secret": {"Secret"},
    "apply -f": OF_A_JOB,
    "> digits.yaml": set(),
    "apply -k": OF_A_JOB,
    "generate rbac --namespace": {"ServiceAccount", "Role", "RoleBinding"},
    "logs -f": set(),
}
"""By what stands in a line: what it makes."""


def test_each_line_makes_what_the_page_says(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl to run the lines with")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    assert len(LINES) == 7
    (tmp_path / "kustomization.yaml").write_text(OVERLAY)
    with KubectlServer() as server:
        config = server.config(tmp_path)
        env = {"PATH": path, "HOME": str(tmp_path), "KUBECONFIG": str(config)}
        for line in LINES:
            before = dict(server.made)
            server.made.clear()
            if "logs" in line:
                server.made |= before
            done = subprocess.run(
                ["/bin/sh", "-c", line],
                cwd=tmp_path,
                env=env,
                capture_output=True,
                text=True,
                timeout=patience(60),
            )
            assert (done.returncode, done.stderr) == (0, ""), line
            kinds = [kinds for word, kinds in MADE_BY.items() if word in line][-1]
            if "logs" in line:
                assert done.stdout == LOG
                continue
            assert {kind for kind, _ in server.made} == kinds
            for made in server.made.values():
                kubernetes_validate.validate(made, "1.31", strict=True)
                spaces = {made["metadata"].get("namespace", "training")}
                assert spaces == {"training"}
                if made["kind"] == "Secret":
                    assert made["data"].keys() == {"token"}
                    read = ["rallypoint", "token", "--run-id", "digits"]
                    own = subprocess.run(read, env=env, capture_output=True, text=True, check=True)
                    assert b64decode(made["data"]["token"]).decode() == own.stdout
            server.made |= {each: made for each, made in before.items() if each[0] == "Job"}


def test_the_overlay_adds_what_it_says_and_keeps_what_was_generated(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl to build the overlay with")
    (tmp_path / "kustomization.yaml").write_text(OVERLAY)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    (line,) = [line for line in LINES if "> digits.yaml" in line]
    build = f"{line} && kubectl kustomize ."
    env = {"PATH": path, "HOME": str(tmp_path)}
    done = subprocess.run(["sh", "-c", build], cwd=tmp_path, env=env, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    before = {each["kind"]: each for each in load((tmp_path / "digits.yaml").read_bytes())}
    after = {each["kind"]: each for each in load(done.stdout)}
    kubernetes_validate.validate(after["Job"], "1.31", strict=True)
    (old,), (new,) = pods(before.pop("Job")), pods(after.pop("Job"))
    assert before == after
    assert broken(new) == [], "the Pod Security Standard restricted"
    assert new.pop("tolerations")[0]["key"] == "nvidia.com/gpu"
    assert new["securityContext"].pop("fsGroup") == 1000
    (container,) = new["containers"]
    assert {"name": "HOME", "value": "/data/home"} in container["env"]
    assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    for added in (new["volumes"], container["env"], container["volumeMounts"]):
        added[:] = [each for each in added if each["name"] not in ("data", "HOME")]
    assert new == old


def load(text: bytes) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def test_the_yaml_of_a_manifest_of_ones_own_is_valid() -> None:
    (text,) = [block for block in blocks("kubernetes.md") if block.startswith("    spec:")]
    spec = yaml.safe_load(text)["spec"]
    spec["containers"][0]["image"] = "me/digits:1"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    kubernetes_validate.validate(pod, "1.31", strict=True)
    (env,) = spec["containers"][0]["env"]
    assert env["name"] == "RALLYPOINT_TOKEN"
