"""The engines of records, made from what their connections are made from."""

from __future__ import annotations

from rallypoint.config import RegisterConfig
from rallypoint.core.model import Epoch, SharedSettings
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process
from rallypoint.register.engines import Use
from rallypoint.register.etcd.parameters import FIELDS, EtcdConfig
from rallypoint.register.etcd.store import EtcdEngine
from rallypoint.register.kubernetes.parameters import KubernetesConfig
from rallypoint.register.kubernetes.store import KubernetesEngine
from rallypoint.register.record import Register, encode
from rallypoint.wire.death_notice import RegisterAt


def directory_register(path: object) -> RegisterConfig:
    """A directory as a person chooses it."""
    return RegisterConfig("file", str(path))


def etcd_register(config: EtcdConfig) -> RegisterConfig:
    """An etcd as a person chooses it."""
    names = {field: name for name, field in reversed(FIELDS.items())}
    said = ((name, str(getattr(config, field))) for field, name in names.items())
    return RegisterConfig("etcd", str(config), tuple((name, text) for name, text in said if text))


def kubernetes_register(config: KubernetesConfig) -> RegisterConfig:
    """An API server as a person chooses it."""
    settings = ("server", config.server), ("service_account", config.service_account)
    return RegisterConfig("kubernetes", config.namespace, settings)


def etcd_engine(config: EtcdConfig, run_id: str = "") -> EtcdEngine:
    """For a node of this job; without a run id for all jobs."""
    register = etcd_register(config)
    return EtcdEngine(register.where, dict(register.settings), Use(run_id))


def kubernetes_engine(config: KubernetesConfig, run_id: str = "") -> KubernetesEngine:
    """For a node of this job; without a run id for all jobs."""
    register = kubernetes_register(config)
    return KubernetesEngine(register.where, dict(register.settings), Use(run_id))


def etcd_at(config: EtcdConfig) -> RegisterAt:
    """What a guard is told of an etcd."""
    return RegisterAt.of(etcd_register(config))


def kubernetes_at(config: KubernetesConfig) -> RegisterAt:
    """What a guard is told of an API server."""
    return RegisterAt.of(kubernetes_register(config))


def read_by_etcd(register: RegisterConfig | None) -> EtcdConfig:
    """What the engine makes of a choice."""
    assert register is not None
    assert register.engine == "etcd"
    return EtcdEngine(register.where, dict(register.settings), Use()).config


def read_by_kubernetes(register: RegisterConfig | None) -> KubernetesConfig:
    """What the engine makes of a choice."""
    assert register is not None
    assert register.engine == "kubernetes"
    return KubernetesEngine(register.where, dict(register.settings), Use()).config


def directory_at(path: object) -> RegisterAt:
    """What a guard is told of a directory."""
    return RegisterAt.of(directory_register(path))


def write_record(backend: Register, run_id: str, beat: int) -> None:
    """Write a record as a leader does: the first one has no job."""
    found = backend.get_state()
    job = JobRecord(SharedSettings(run_id, 1, 2), 1) if beat else None
    record = LeadRecord(1, Epoch(1, 1), Leader((), Process("boot", 1, 1)), beat, job)
    assert backend.set_state(encode(record), None if found is None else found[1]) is not None
