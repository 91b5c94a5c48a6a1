"""Real etcd servers on loopback, of one member or of several.

    with Etcd(tmp_path, members=3) as etcd:
        etcd.kill(etcd.leader)
        etcd.start(0)

They do not wait for a disk, and elect a leader sooner than as a rule.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from base64 import b64decode, b64encode
from functools import partial
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.harness.cluster import Cluster, Option, free_port, is_listening, wait_until

from rallypoint.elastic.rendezvous.etcd_server import BINARY_VARIABLE, find_etcd
from rallypoint.errors import ParameterError

OWN = Path(__file__).resolve().parents[2] / ".venv/etcd/usr/bin/etcd"
START_S = 20.0


def program() -> str:
    """Where etcd is, for these tests and for an `EtcdServer`: TORCHELASTIC_ETCD_BINARY_PATH, or the
    one on PATH, or that of tools/install_etcd.sh. Without any the test is skipped."""
    if not os.environ.get(BINARY_VARIABLE) and not shutil.which("etcd") and OWN.exists():
        os.environ[BINARY_VARIABLE] = str(OWN)
    try:
        return find_etcd()
    except ParameterError as error:
        pytest.skip(f"{error} (tools/install_etcd.sh gets Debian's)")


class Etcd:
    """For `with`. Members have numbers, from 0."""

    def __init__(self, folder: Path, members: int = 1, *options: str, scheme: str = "http") -> None:
        self._program, self._folder, self._options = program(), folder, options
        self._scheme = scheme
        self.tls: SSLContext | None = None
        """By which a member with TLS is asked."""
        self.ports = [free_port() for _ in range(members)]
        self._peers = [free_port() for _ in range(members)]
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Etcd:
        for number in range(len(self.ports)):
            self.start(number)
        if self._scheme == "http":
            self.wait_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for number in list(self._running):
            self.kill(number)

    @property
    def endpoints(self) -> str:
        """For `--rdzv-endpoint`."""
        return ",".join(f"{self._address(n)}:{port}" for n, port in enumerate(self.ports))

    def start(self, number: int) -> None:
        """A member, which may have run before."""
        peers = [f"http://{self._address(n)}:{port}" for n, port in enumerate(self._peers)]
        client = f"{self._scheme}://{self._address(number)}:{self.ports[number]}"
        log = (self._folder / f"etcd-{number}.log").open("ab")
        with log:
            self._running[number] = subprocess.Popen(
                [
                    *self._prefix(number),
                    self._program,
                    *("--name", f"m{number}"),
                    *("--data-dir", str(self._folder / f"etcd-{number}")),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peers[number]),
                    *("--initial-advertise-peer-urls", peers[number]),
                    "--initial-cluster",
                    ",".join(f"m{n}={peer}" for n, peer in enumerate(peers)),
                    *("--heartbeat-interval", "30", "--election-timeout", "300"),
                    *("--unsafe-no-fsync", "--log-level", "error", "--logger", "zap"),
                    *self._options,
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": os.uname().machine},
            )

    def kill(self, number: int) -> None:
        """At once."""
        process = self._running.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def pause(self, number: int) -> None:
        """It keeps its connections, and answers nobody."""
        self._running[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._running[number].send_signal(signal.SIGCONT)

    @property
    def leader(self) -> int:
        """Which member leads, as a member that runs says."""
        for number in self._running:
            if (status := self._status(number)) and int(status.get("leader", "0")):
                leader = status["leader"]
                for other in self._running:
                    found = self._status(other)
                    if found and found["header"]["member_id"] == leader:
                        return other
        raise AssertionError("no member leads")

    def wait_ready(self) -> None:
        """Until every member that runs would take a write: one that has just been started answers
        nobody before it has reached the others."""
        for number in self._running:
            wait_until(partial(self._answers, number), f"member {number}", START_S)

    def _answers(self, number: int) -> bool:
        assert self._running[number].poll() is None, self._logs()
        try:
            self.call("/v3/kv/range", {"key": "AA=="}, member=number)
        except OSError:
            return False
        return True

    def wait_listening(self, number: int = 0) -> None:
        """Until it takes connections: for one that wants to know who asks."""
        wait_until(lambda: is_listening(self.ports[number]), "a member", START_S)

    def call(
        self, path: str, body: dict[str, Any], *, member: int | None = None, token: str = ""
    ) -> dict[str, Any]:
        """As an operator would ask, one member or any that runs. Raises OSError."""
        headers = {"Authorization": token} if token else {}
        asked = list(self._running) if member is None else [member]
        for number in asked:
            url = f"{self._scheme}://{self._address(number)}:{self.ports[number]}{path}"
            request = Request(url, json.dumps(body).encode(), headers)
            try:
                with urlopen(request, timeout=5, context=self.tls) as answer:
                    return json.load(answer)  # type: ignore[no-any-return]
            except OSError as error:
                if number == asked[-1] or isinstance(error, HTTPError):
                    raise
        raise AssertionError("no member runs")

    def put(self, key: str, value: bytes) -> None:
        """As somebody else would."""
        self.call("/v3/kv/put", {"key": encoded(key), "value": encoded(value)})

    def keys(self, prefix: str) -> dict[str, bytes]:
        """All that is there."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        body = {"key": encoded(prefix), "range_end": encoded(end)}
        kvs = self.call("/v3/kv/range", body).get("kvs", [])
        return {b64decode(kv["key"]).decode(): b64decode(kv.get("value", "")) for kv in kvs}

    def _address(self, number: int) -> str:
        """Of a member."""
        return "127.0.0.1"

    def _prefix(self, number: int) -> tuple[str, ...]:
        """What is before the command of a member."""
        return ()

    def _status(self, number: int) -> dict[str, Any] | None:
        try:
            return self.call("/v3/maintenance/status", {}, member=number)
        except OSError:
            return None

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self._folder.glob("etcd-*.log"))


def add_users(etcd: Etcd, **rights: str) -> None:
    """Who may READ or READWRITE what lies under /rallypoint, or nothing, and `root`; the password
    of each is its name. From then on etcd wants a user."""
    grants = {"key": encoded("/rallypoint/"), "range_end": encoded("/rallypoint0")}
    for right in ("READ", "READWRITE"):
        etcd.call("/v3/auth/role/add", {"name": right})
        permission = {"permType": right, **grants}
        etcd.call("/v3/auth/role/grant", {"name": right, "perm": permission})
    etcd.call("/v3/auth/role/add", {"name": "root"})
    for name, role in {"root": "root", **rights}.items():
        etcd.call("/v3/auth/user/add", {"name": name, "password": name})
        if role:
            etcd.call("/v3/auth/user/grant", {"user": name, "role": role})
    etcd.call("/v3/auth/enable", {})


def cluster_of(
    folder: Path, etcd: Etcd, run_id: str, nnodes: str = "3", **options: Option
) -> Cluster:
    """A job by this etcd, on loopback."""
    return Cluster(
        folder,
        rdzv_backend="etcd",
        rdzv_endpoint=etcd.endpoints,
        rdzv_id=run_id,
        nnodes=nnodes,
        local_addr="127.0.0.1",
        **options,
    )


def encoded(text: str | bytes) -> str:
    return b64encode(text.encode() if isinstance(text, str) else text).decode()
