"""The register of a job, by which any of its nodes may lead it: what the command line says of it.

`run` keeps the register in the directory of `--rdzv-endpoint`, in the etcd there, or in Kubernetes;
other commands find the job's coordinator by it. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from rallypoint.cli.machine import ThisHost
from rallypoint.cli.parser import Scanned
from rallypoint.cli.run_options.empty_values import was_empty
from rallypoint.cli.values import Given, conf_words, place
from rallypoint.config import RegisterConfig
from rallypoint.core.settings import FLAGS, UNNAMED_RUN_ID
from rallypoint.errors import UsageError
from rallypoint.wire.address import is_port
from rallypoint.wire.etcd_config import EtcdConfig
from rallypoint.wire.kubernetes_config import KubernetesConfig

BY_REGISTER = ("file", "etcd", "kubernetes")
"""The backends of jobs that have one."""
WITH_ONE = "--rdzv-backend file, etcd or kubernetes"
_NEEDS = {
    "file": "DIR, a directory that all nodes share",
    "etcd": "HOST[:2379],..., the members of an etcd that all nodes reach",
}
_PLACES = {"file": "a directory", "etcd": "an etcd", "kubernetes": "a namespace"}
_OF_A_FIXED_HOST = ("is_host", "host_timeout")
"""What says which node hosts, or how long to wait for it."""


def read_register(
    scanned: Scanned, backend: str, machine: ThisHost
) -> tuple[RegisterConfig, Scanned]:
    """Where the register is, and where a leader listens; and the options without those keys of
    `--rdzv-conf` that say so. Raises UsageError, also without a run id: the records of many jobs
    may lie in one place."""
    register, rest = read_place(scanned, backend, machine)
    job = scanned.get("--rdzv-id")
    if job is None or job.text == UNNAMED_RUN_ID:
        raise UsageError(
            f"{was_empty(scanned, '--rdzv-id')}--rdzv-backend {backend}: {_PLACES[backend]} may "
            "hold many jobs, and distinguishes them by their run ids: give --rdzv-id, the same for "
            "all nodes of this job, like --rdzv-id my-job-1"
        )
    return register, rest


def read_place(scanned: Scanned, backend: str, machine: ThisHost) -> tuple[RegisterConfig, Scanned]:
    """The same for all jobs that are kept there."""
    where = scanned.get("--rdzv-endpoint")
    if where is None and backend in _NEEDS:
        raise UsageError(
            f"{was_empty(scanned, '--rdzv-endpoint')}--rdzv-backend {backend}: needs "
            f"--rdzv-endpoint {_NEEDS[backend]}"
        )
    place: dict[str, Any] = {}
    if backend == "file":
        assert where is not None
        place["directory"] = _directory(where, machine)
    else:
        read = _etcd if backend == "etcd" else _kubernetes
        place[backend], scanned = read("" if where is None else where.text, scanned, machine)
    return RegisterConfig(**place, **scanned.fields(RegisterConfig, FLAGS.values())), scanned


def check_conf(rest: Scanned) -> None:
    """Of a command to which only a place can be said by `--rdzv-conf`. Raises UsageError."""
    if (other := rest.get("--rdzv-conf")) is not None and other.text:
        raise other.wrong("only the keys of the backend are of use here")


def remarks_on(scanned: Scanned, backend: str) -> list[str]:
    """A remark on each option that has no meaning where any node may lead."""
    return [
        f"{given.origin} has no effect with --rdzv-backend {backend}: any node may host the job"
        for name in _OF_A_FIXED_HOST
        if (given := scanned.get(name)) is not None
    ]


def _directory(where: Given, machine: ThisHost) -> str:
    """The absolute path. What is there is not looked at: a file server may not answer."""
    host, _, port = where.text.rpartition(":")
    if host and "/" not in host and is_port(port):
        raise where.wrong(
            "--rdzv-backend file needs a directory that all nodes share, and this looks like an "
            f"address: leave --rdzv-backend out, or give the directory as ./{where.text}"
        )
    return machine.absolute_path(place(where, "a directory that all nodes share"))


def _etcd(endpoints: str, scanned: Scanned, machine: ThisHost) -> tuple[EtcdConfig, Scanned]:
    from rallypoint.register.etcd.parameters import FIELDS, read_etcd

    conf, rest = _parted(scanned, FIELDS)
    if "password" in conf:
        raise UsageError(
            "--rdzv-conf password: a command line is seen by others: give password_file=FILE, or "
            "RALLYPOINT_ETCD_PASSWORD in the environment"
        )
    if "user" in conf and "password_file" not in conf and (secret := machine.etcd_password()):
        conf["password"] = secret
    try:
        return read_etcd(endpoints, conf, partial(_absolute, machine)), rest
    except UsageError as error:
        raise UsageError(f"--rdzv-backend etcd: {error}") from None


def _kubernetes(
    namespace: str, scanned: Scanned, machine: ThisHost
) -> tuple[KubernetesConfig, Scanned]:
    from rallypoint.register.kubernetes.parameters import FIELDS, read_kubernetes

    conf, rest = _parted(scanned, FIELDS)
    try:
        server = machine.kubernetes_server()
        return read_kubernetes(namespace, conf, partial(_absolute, machine), server), rest
    except UsageError as error:
        raise UsageError(f"--rdzv-backend kubernetes: {error}") from None


def _absolute(machine: ThisHost, path: str) -> str:
    return machine.absolute_path(place(Given(path, path), "a file"))


def _parted(scanned: Scanned, fields: Collection[str]) -> tuple[dict[str, str], Scanned]:
    """What `--rdzv-conf` says of these fields; and the options without that."""
    given = scanned.get("--rdzv-conf")
    if given is None:
        return {}, scanned
    words = list(conf_words(given))
    rest = ",".join(f"{key}={text}" for key, text in words if key not in fields)
    values = scanned.values | {"--rdzv-conf": [Given(rest, f"--rdzv-conf {rest}")]}
    conf = {key: text for key, text in words if key in fields}
    return conf, Scanned(scanned.words, values, scanned.empty)
