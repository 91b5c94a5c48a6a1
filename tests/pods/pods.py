"""Pods: network namespaces with a name server, an API server and a service account, in which the
agent is the first process.

    with Pods(tmp_path, 3, "--rdzv-backend", "tcp") as pods:
        first = pods.start("digits-0")
        pods.start("digits-1")
        pods.wait_workers(3)
        pods.terminate(first)

A pod runs what `rallypoint generate kubernetes` prints for it, with the environment that the
kubelet would make of it. Each start gets an address that no pod had before, and its name means that
address unless the test says otherwise.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.fault.hosts import PORT, HostCluster
from tests.harness.certificates import make_certificates
from tests.harness.cluster import AgentProcess, Option
from tests.harness.proc import children_of
from tests.harness.programs import run_program
from tests.harness.proxy import Proxy
from tests.kubernetes.stand_in import NAMESPACE, Pod, apply, rbac, stand_in
from tests.kubernetes.stand_in import manifest as stand_in_manifest
from tests.pods.name_server import NameServer

from rallypoint.coordinator.client.token import parse_token
from rallypoint.register.kubernetes.parameters import SERVICE_ACCOUNT

NAME = "digits"
__all__ = ["NAME", "PORT", "Pods", "manifest"]

INFRA = "infra"
"""The host of the name server and of the API server."""
SEE_MEMORY = (
    "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/memory"
    " && { mount -t cgroup -o memory none /sys/fs/cgroup/memory"
    " || mount -t cgroup2 none /sys/fs/cgroup; }"
)
SPARE = 3
"""So many addresses more than pods."""


def manifest(*words: str) -> list[dict[str, Any]]:
    """Return the objects that `rallypoint generate kubernetes` prints for the Job of this name."""
    return stand_in_manifest("--name", NAME, *words)


class Pods(HostCluster):
    """Of one Job."""

    def __init__(self, folder: Path, number: int, *words: str, **options: Option) -> None:
        """`words`: of `rallypoint generate kubernetes`. `options`: added to its command."""
        self._places = [f"p{index}" for index in range(number + SPARE)]
        super().__init__(folder, *self._places, INFRA)
        self.options = dict(options)
        objects = manifest("--nodes", str(number), *words)
        self._objects = objects
        (self.job,) = (each["spec"] for each in objects if each["kind"] == "Job")
        self.container = self.job["template"]["spec"]["containers"][0]
        self.zones: dict[str, str] = {}
        """Of the machines, by the pods on them; others have no such label."""
        self._opened = ExitStack()
        self._used = 0

    def start(
        self,
        name: str,
        *more: str,
        is_named: bool = True,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        command: Sequence[str] = (),
        sees_memory: bool = False,
    ) -> AgentProcess:
        """`more`: words for the agent. `is_named`: the name server knows it. `command`: in place
        of the manifest's. `sees_memory`: the pod's cgroup of memory, as containers have it."""
        place = self._places[self._used]
        self._used += 1
        address = self.network.address(place)
        if is_named:
            self.dns.names[f"{name}.{NAME}"] = address
        words = list(command or self.container["command"])
        if words[:2] == ["rallypoint", "run"]:
            further = [
                f"--{option.replace('_', '-')}={value}" for option, value in self.options.items()
            ]
            # The image's script is ours.
            words = [*words[:-1], *further, *more, str(self.script), str(self._orders)]
        words = [sys.executable, "-m", *words]
        inside = (
            f"hostname {name} && mount -t tmpfs none /run && mkdir -p {SERVICE_ACCOUNT}"
            f' && mount --bind {self.account.folder} {SERVICE_ACCOUNT} && exec "$@"'
        )
        if sees_memory:
            inside = f"{SEE_MEMORY} && {inside}"
        spaces = ("unshare", "--cgroup", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child")
        command = (*prefix, *self.network.inside(place), *spaces, "sh", "-c", inside, "sh", *words)
        made = self.environ() | self._env(name, address) | dict(env or {})
        told = [agent.name for agent in self.all_agents].count(name)
        agent = AgentProcess(f"{name}.{told + 1}" if told else name, command, made, self.folder)
        agent.name = name
        self.all_agents.append(agent)
        return agent

    def pods(self, number: int) -> list[AgentProcess]:
        """The first so many."""
        return [self.start(f"{NAME}-{index}") for index in range(number)]

    def may_use_all_records(self) -> None:
        """Give the pods the rights that the docs name for a manifest that a person writes."""
        apply(self.api, rbac("--namespace", NAMESPACE, "--service-account", NAME))

    def terminate(self, pod: AgentProcess, number: int = signal.SIGTERM) -> None:
        """As the kubelet does: to the first process of the container."""
        os.kill(self.init_of(pod), number)

    def init_of(self, pod: AgentProcess) -> int:
        """The agent, from outside."""
        return children_of(pod.pid)[0]

    def execute(self, pod: AgentProcess, home: Path, *words: str) -> str:
        """Run a command as `kubectl exec POD -- ...` does: in the namespaces of the container, with
        the environment that the container was given. Returns what it wrote to stdout.
        `home`: the home directory there, and the place of temporary files."""
        spaces = ("--mount", "--uts", "--pid", "--net", "--cgroup")
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home)}
        env |= self._env(pod.name, self.address_of(pod))
        del env["RALLYPOINT_LOG_FORMAT"]  # It is of the tests alone.
        ran = run_program(
            ["nsenter", f"--target={self.init_of(pod)}", *spaces, sys.executable, "-m", *words],
            env=env,
            cwd="/",
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def is_healthy(self, pod_address: str) -> bool:
        """What the kubelet's probe finds."""
        where = self.container["livenessProbe"]["httpGet"]
        with self.network.entered(INFRA):
            try:
                peer = socket.create_connection((pod_address, where["port"]), 5)
            except OSError:
                return False
        with peer:
            peer.sendall(f"GET {where['path']} HTTP/1.1\r\nHost: {pod_address}\r\n\r\n".encode())
            return peer.recv(100).startswith(b"HTTP/1.1 200 ")

    def address_of(self, pod: AgentProcess) -> str:
        space = pod.argv[pod.argv.index("exec") + 1]
        return self.network.address(space.rpartition(".")[2])

    def service(self, port: int, pod: AgentProcess) -> Proxy:
        """Before this pod, at the address of INFRA. It accepts connections and forwards them, as
        the first kube-proxy did."""
        with self.network.entered(INFRA):
            host = self.network.address(INFRA)
            return Proxy(port, host, self.address_of(pod), port)

    def _env(self, name: str, address: str) -> dict[str, str]:
        """What the kubelet makes of the manifest."""
        fields = {
            "metadata.labels['topology.kubernetes.io/zone']": self.zones.get(name, ""),
            "spec.nodeName": f"machine-of-{name}",
            "status.podIP": address,
        }
        env = {
            "JOB_COMPLETION_INDEX": name.rpartition("-")[2],
            "HOSTNAME": name,
            "KUBERNETES_SERVICE_HOST": self.api.host,
            "KUBERNETES_SERVICE_PORT": str(self.api.port),
            "RALLYPOINT_LOG_FORMAT": "json",
        }
        token = parse_token((self.home / ".config/rallypoint/token").read_text(), "the file")
        for each in self.container["env"]:
            if "value" in each:
                text = re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], each["value"])
            elif "secretKeyRef" in each["valueFrom"]:
                text = token.text_for_job(NAME)
            else:
                text = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            env[each["name"]] = text
        return env

    def environ(self) -> dict[str, str]:
        """Names come from the name server."""
        return {key: text for key, text in super().environ().items() if key != "RES_OPTIONS"}

    def __enter__(self) -> Pods:
        super().__enter__()
        try:
            host = self.network.address(INFRA)
            self.network.ask(host)
            folder = self.folder / "certificates"
            folder.mkdir()
            certificates = make_certificates(folder, host)
            with self.network.entered(INFRA):
                self.dns = self._opened.enter_context(NameServer(host))
                self.api = self._opened.enter_context(stand_in(certificates, host))
            apply(self.api, self._objects)
            # With the rights of the manifest, and no other ones.
            self.account = Pod(self.api, certificates, self.folder / "account", NAME)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._opened.close()

    def _assert_clean(self) -> None:
        """What a killed container leaves is removed with it."""
