"""A worker's environment: torchrun's variables under their own names, and ours. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from rallypoint.config import TOKEN_VARIABLE, AgentConfig, WorkerConfig
from rallypoint.core.model import Assignment, Stamp
from rallypoint.core.task_variables import inherited
from rallypoint.core.text import count, named, shown
from rallypoint.errors import UsageError
from rallypoint.files import local_path
from rallypoint.hashes import blake2s
from rallypoint.wire.address import read_port

MLFLOW_RUN_VARIABLE = "RALLYPOINT_MLFLOW_RUN"
LOCAL_RANK_MACRO = "${local_rank}"
SHM_VARIABLE = "RALLYPOINT_SHM"
VISIBLE_DEVICES, HIP_DEVICES = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
ROCR_DEVICES = "ROCR_VISIBLE_DEVICES"
TIMER_FILE_VARIABLE = "TORCHELASTIC_TIMER_FILE"
TORCHELASTIC_ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
TORCHELASTIC_HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
"""The variable with the port of health checks. This constant has the name that it has in torch."""
SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
SHUTDOWN_TIMEOUT_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_PROGRESS_VARIABLES = ("KUBEFLOW_TRAINER_SERVER", "KUBEFLOW_TRAINER_STATUS")
"""The beginnings of the names of Kubeflow Trainer's variables: of its release 2.2, and of the
proposal before it. They end with _URL, and with _CA_CERT and _TOKEN (the paths of files)."""


class WorkerContext(Struct, frozen=True):
    """One worker's place in one round. Ranks count from 0."""

    local_rank: int
    error_file: str
    """The path of the file for the worker's exception; empty: none."""
    stamp: Stamp
    assignment: Assignment
    config: AgentConfig
    node_id: str
    shm: str = ""
    """The path of the round's shared memory; empty: there is none."""
    timer_file: str = ""
    """The named pipe for timers of torch's clients; empty: none was asked for."""

    @property
    def rank(self) -> int:
        """The rank of this worker in the whole job: RANK."""
        return self.assignment.base_rank + self.local_rank

    @property
    def role_rank(self) -> int:
        """The rank of this worker among those of its role: ROLE_RANK."""
        return self.assignment.base_role_rank + self.local_rank


def common_environ(workers: WorkerConfig, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the part of a worker's environment that is the same for all workers of a node.

    It is `base` (the agent's own) with defaults for unset variables of torch, Python and OpenMP. It
    lacks the token, and a scheduler's variables of its task but for `WorkerConfig.keep_env`.
    """
    environ = inherited(without_token(base), workers.keep_env)
    if workers.unbuffered:
        environ.setdefault("PYTHONUNBUFFERED", "1")
    environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    environ.setdefault("PYTHONFAULTHANDLER", "1")
    if workers.omp_threads is not None:
        environ.setdefault("OMP_NUM_THREADS", str(workers.omp_threads))
    return environ


def worker_environ(context: WorkerContext, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the whole environment of one worker: `base` (the agent's own), overlaid.

    TORCHELASTIC_USE_AGENT_STORE is `True` because a store listens at MASTER_ADDR:MASTER_PORT before
    any worker starts, so that every worker is a client of it, rank 0 too. The token is taken out: a
    worker runs the user's code, and its environment ends up in logs. Variables by which a scheduler
    describes its task are taken out too, as the task is the agent (`core/task_variables.py`).
    PYTHONFAULTHANDLER, which torchrun does not set, has Python write its stack to stderr at a fatal
    signal; an empty value in `base` turns that off.

    Raises UsageError where each worker should see one device and there is none for this one, and as
    `style_environ`.
    """
    place, workers, local_rank = context.assignment, context.config.workers, context.local_rank
    rendezvous = context.config.rendezvous
    environ = common_environ(workers, base)
    environ |= {
        "LOCAL_RANK": str(local_rank),
        "RANK": str(context.rank),
        "GROUP_RANK": str(place.group_rank),
        "ROLE_RANK": str(context.role_rank),
        "ROLE_NAME": workers.role,
        "LOCAL_WORLD_SIZE": str(workers.count),
        "WORLD_SIZE": str(place.world_size),
        "GROUP_WORLD_SIZE": str(place.group_world_size),
        "ROLE_WORLD_SIZE": str(place.role_world_size),
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": str(place.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(place.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(rendezvous.max_restarts),
        "TORCHELASTIC_RUN_ID": rendezvous.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": context.error_file,
        "RALLYPOINT_RUN_ID": rendezvous.run_id,
        "RALLYPOINT_INCARNATION": str(context.stamp.incarnation),
        "RALLYPOINT_ROUND": str(context.stamp.round),
        "RALLYPOINT_NODE_ID": context.node_id,
        "RALLYPOINT_RESTART_REASON": place.why.replace("\0", ""),
        "RALLYPOINT_LOCAL_RANK": str(local_rank),
        SHM_VARIABLE: context.shm,
    }
    if not context.shm:
        del environ[SHM_VARIABLE]  # That of an agent around this one is none of these workers'.
    for name in workers.export_run_id:
        environ = _EXPORTED[name](tracked_run_id(rendezvous.run_id)) | environ
    if workers.virtual_local_rank:
        environ |= {"LOCAL_RANK": "0", **own_device(environ, local_rank, workers.count)}
    if context.timer_file:
        environ[TIMER_FILE_VARIABLE] = context.timer_file
    if rendezvous.env_styles:
        from rallypoint.agent.environ_styles import StyledWorker, style_environ

        worker = StyledWorker(local_rank, place, workers, environ)
        environ |= style_environ(rendezvous.env_styles, worker)
    return environ


_EXPORTED: Mapping[str, Callable[[str], dict[str, str]]] = {
    "wandb": lambda run_id: {"WANDB_RUN_ID": run_id, "WANDB_RESUME": "allow"},
    # MLFLOW_RUN_ID can't name a run that does not exist yet: see integrations/mlflow.py.
    "mlflow": lambda run_id: {MLFLOW_RUN_VARIABLE: run_id},
}
"""The functions that return the variables with a run id, by experiment tracker. Variables that are
set already stay."""


def tracked_run_id(run_id: str) -> str:
    """Return the run id in a form that every experiment tracker accepts.

    It has at most 64 letters, digits, `_` and `-`. One that was changed ends with a hash, so that
    different run ids stay different.
    """
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in run_id)
    if plain == run_id and len(plain) <= 64:
        return run_id
    return f"{plain[:55]}-{blake2s(run_id.encode(), digest_size=4).hexdigest()}"


def without_token(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return `base` (the agent's own environment) without the token, for another program."""
    environ = dict(os.environ if base is None else base)
    environ.pop(TOKEN_VARIABLE, None)
    return environ


def visible_devices(base: Mapping[str, str] | None = None) -> str | None:
    """Return the value of CUDA_VISIBLE_DEVICES for this agent; None: it is not set."""
    return (os.environ if base is None else base).get(VISIBLE_DEVICES)


def own_device(environ: Mapping[str, str], local_rank: int, workers: int) -> dict[str, str]:
    """Return the variables that show this worker its one device; `environ` is the agent's.

    The list of devices is HIP_VISIBLE_DEVICES where that is set, and then the worker gets that
    variable too; else it is CUDA_VISIBLE_DEVICES. Without a list the devices are assumed to have
    the workers' numbers; so are those that ROCR_VISIBLE_DEVICES leaves, which the driver numbers
    anew, and which stays as it is. Raises UsageError when a list is shorter than the number of
    workers.
    """
    by_hip = HIP_DEVICES in environ
    source = HIP_DEVICES if by_hip else VISIBLE_DEVICES
    if source not in environ:
        _enough(ROCR_DEVICES, environ.get(ROCR_DEVICES), workers)
        return {VISIBLE_DEVICES: str(local_rank)}
    device = _enough(source, environ[source], workers)[local_rank]
    return {VISIBLE_DEVICES: device} | ({HIP_DEVICES: device} if by_hip else {})


def _enough(variable: str, visible: str | None, workers: int) -> list[str]:
    """Return the entries of a list of devices. Raises UsageError if workers outnumber them."""
    devices = [entry.strip() for entry in (visible or "").split(",")]
    if visible is not None and len(devices) < workers:
        found = f"{variable}={shown(visible)} names {count(len(devices), 'device')}"
        raise UsageError(
            f"{named.virtual_local_rank}: {found} for {count(workers, 'worker')}; "
            "name one device for each, or start fewer workers"
        )
    return devices


def timer_file_asked_for(base: Mapping[str, str] | None = None) -> str | None:
    """Return the path of torch's pipe for timers; empty: any path will do.

    None: no pipe is wanted.
    """
    environ = os.environ if base is None else base
    if path := environ.get(TIMER_FILE_VARIABLE, ""):
        return path
    return "" if environ.get(TORCHELASTIC_ENABLE_FILE_TIMER) == "1" else None


def asked_for(variable: str) -> str:
    """Return the value of a variable of torch; empty: it is not set."""
    return os.environ.get(variable, "")


def health_port_asked_for(base: Mapping[str, str] | None = None) -> int | None:
    """Return the port of torch's variable for health checks; None: there is none.

    None also if this program is itself a worker of an agent: then the variable is meant for that
    agent. Raises UsageError.
    """
    environ = os.environ if base is None else base
    text = environ.get(TORCHELASTIC_HEALTH_CHECK_PORT, "").strip()
    if not text or "RALLYPOINT_INCARNATION" in environ:
        return None
    try:
        return read_port(text, 1)
    except ValueError as error:
        raise UsageError(f"{TORCHELASTIC_HEALTH_CHECK_PORT}={shown(text)}: {error}") from None


class ProgressReceiver(Struct, frozen=True):
    """The address in Kubeflow Trainer to which the progress of a TrainJob is posted.

    A URL, and the paths of a CA certificate and of a token, which may be empty.
    """

    url: str
    ca_cert: str
    token_file: str
    origin: str
    """The name of the variable with the URL, and its value, as messages show them."""


def progress_receiver_asked_for(base: Mapping[str, str] | None = None) -> ProgressReceiver | None:
    """Return the receiver that Kubeflow Trainer's variables name; None: there is none.

    None also if this program is itself a worker of an agent: then that agent posts the progress.
    """
    environ = os.environ if base is None else base
    if "RALLYPOINT_INCARNATION" in environ:
        return None
    for prefix in _PROGRESS_VARIABLES:
        if url := environ.get(f"{prefix}_URL", "").strip():
            ca_cert, token = (environ.get(f"{prefix}_{name}", "") for name in ("CA_CERT", "TOKEN"))
            return ProgressReceiver(url, ca_cert, token, f"{prefix}_URL={shown(url)}")
    return None


def kept_jobs(base: Mapping[str, str] | None = None) -> str:
    """Return the directory in which the ends of this user's jobs are kept; empty: there is none.

    Raises UsageError for a RALLYPOINT_STATE_DIR that is not the name of a directory.
    """
    environ = os.environ if base is None else base
    if state := environ.get("RALLYPOINT_STATE_DIR", "").strip():
        try:
            state = os.path.abspath(local_path(state, "needs a directory"))
        except ValueError as error:
            raise UsageError(f"RALLYPOINT_STATE_DIR={shown(state)}: {error}") from None
    else:
        home = environ.get("XDG_STATE_HOME", "")
        home = home if os.path.isabs(home) else os.path.expanduser("~/.local/state")
        state = os.path.join(home, "rallypoint")
    return os.path.join(state, "kept") if os.path.isabs(state) else ""


def worker_argv(template: Sequence[str], local_rank: int) -> list[str]:
    """Return the command of one worker: every `${local_rank}` replaced, every other `$` left alone.

    (torchrun also turns `$$` into `$` and replaces `$local_rank`, which mangles arguments.)
    """
    return [word.replace(LOCAL_RANK_MACRO, str(local_rank)) for word in template]
