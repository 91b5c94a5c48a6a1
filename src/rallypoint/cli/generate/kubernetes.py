"""`rallypoint generate kubernetes`: a job's objects for Kubernetes, with comments that say why."""

from __future__ import annotations

import re
from textwrap import indent

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.cli.generate.kubernetes_texts import (
    COUNTS,
    HEAD,
    JOB,
    JOBSET,
    MEMORY_SAYS,
    RECORD,
    SERVICE,
    SPEC,
    TRAIN_JOB,
    TRAINER,
)
from rallypoint.cli.generate.quoting import container_word, yaml_value
from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.run_options.wrong_script import generated_words
from rallypoint.cli.values import Value, integer_within, nodes, seconds
from rallypoint.core.settings import (
    MAX_GIVEN,
    MAX_NODES,
    MAX_WAIT_S,
    MAX_WORKERS_PER_NODE,
    Setting,
)
from rallypoint.errors import UsageError

AFTER_DRAIN_S = 30
"""Seconds between the drain deadline of a pod and its SIGKILL."""
HEALTH_PORT = 29480
MAX_NAME = 52
"""The longest name of a job. Kubernetes appends to it for the names of pods, and a label has 63
characters."""
_QUEUE = "kueue.x-k8s.io/queue-name"
_SHM, _USER = "8Gi", "1000"
_KINDS = ("--job", "--jobset", "--trainer")
_QUANTITY = re.compile(r"\d+(\.\d+)?([kMGTPE]|[KMGTPE]i)?", re.ASCII)
_CPUS = re.compile(r"\d+m|\d+(\.\d{1,3})?", re.ASCII)
_PART = r"[a-z0-9]+([._-]+[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:\d+)?/)?{_PART}(/{_PART})*(:\w[\w.-]{{0,127}})?"
    r"(@[a-z0-9]+:[0-9A-Fa-f]+)?",
    re.ASCII,
)
"""A registry, a path, a tag and a digest."""
_KEY = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?", re.ASCII)
_LABEL = re.compile(rf"|{_KEY.pattern}", re.ASCII)

KUBERNETES = Command(
    "generate kubernetes",
    """\
usage: rallypoint generate kubernetes --image IMAGE [options] [SCRIPT [its arguments]]

Print what runs SCRIPT (train.py) in pods, one agent in each, as YAML with
comments: to be read, changed, and given to kubectl.

  rallypoint generate kubernetes --image me/digits:1 --nodes 4 --gpus 8 train.py \\
      | kubectl apply -f -
""",
    (
        (
            "What Kubernetes gets",
            (
                Setting("--job", "", "an Indexed Job and a headless Service (this is the default)"),
                Setting("--jobset", "", "a JobSet, which needs JobSet in the cluster"),
                Setting("--trainer", "", "a TrainingRuntime and a TrainJob of Kubeflow Trainer v2"),
                Setting("--name", "NAME", "of the job and its objects", default="train"),
                Setting("--namespace", "NAME", "of all objects", default="default"),
                Setting("--queue", "NAME", "the queue of Kueue that admits the job"),
                Setting(
                    "--label", "KEY=VALUE", "of the job and its pods; repeatable", repeatable=True
                ),
                Setting(
                    "--annotation",
                    "KEY=VALUE",
                    "of the job and its pods; repeatable",
                    repeatable=True,
                ),
                Setting(
                    "--ttl",
                    "SECONDS",
                    "remove the Job or JobSet and its pods so long after its end",
                    default="never",
                ),
            ),
        ),
        (
            "Pods",
            (
                Setting("--image", "IMAGE", "has rallypoint, Python and the script", required=True),
                Setting(
                    "--nodes",
                    "N|MIN:MAX",
                    "pods, the spare ones included; MIN:MAX: it starts with MIN",
                    default="2",
                ),
                Setting("--gpus", "N", "GPUs of each pod (nvidia.com/gpu)", default="none"),
                Setting("--cpus", "N", "CPUs that each pod asks for, like 8", default="none"),
                Setting("--memory", "SIZE", "memory of each pod, like 64Gi", default="no limit"),
                Setting("--shm", "SIZE", "limit of /dev/shm; a part of that memory", default=_SHM),
                Setting("--user", "UID", "the user of all processes", default=_USER),
                Setting(
                    "--pull-secret",
                    "NAME",
                    "a Secret by which the image is pulled; repeatable",
                    repeatable=True,
                ),
            ),
        ),
        (
            "Options of rallypoint run",
            (
                Setting("--spares", "N", "so many of --nodes stand by", default="0"),
                Setting("--nproc-per-node", "N", "workers of a pod", default="its GPUs, or 1"),
                Setting("--max-restarts", "N", "restarts after worker failures", default="3"),
                Setting(
                    "--drain-deadline",
                    "SECONDS",
                    "for a last checkpoint when a pod is evicted",
                    default="60",
                ),
                Setting(
                    "--rdzv-backend",
                    "kubernetes|tcp",
                    "kubernetes: any pod may lead the job, and any may be lost; tcp: the pod 0"
                    " leads, and the job ends with it",
                    kind="choice",
                    default="kubernetes",
                ),
            ),
        ),
    ),
    runs_a_script=True,
)


class _Job(Struct, frozen=True):
    """The job that a person has asked for."""

    kind: str
    name: str
    namespace: str
    image: str
    most: int
    """Pods."""
    gpus: int
    cpus: str
    memory: str
    shm: str
    user: int
    pull_secrets: tuple[str, ...]
    queue: str
    labels: dict[str, str]
    annotations: dict[str, str]
    ttl: int | None
    workers: int
    drain_s: float
    by_register: bool
    command: tuple[str, ...]


def text(scanned: Scanned) -> str:
    """The YAML. Raises UsageError."""
    job = _read(scanned)
    where = {"name": job.name, "namespace": job.namespace}
    head = HEAD.format(**where)
    parts = [RECORD.format(**where, record=_record(job.name))] if job.by_register else []
    spec = _spec(job)
    # The queue is that of the whole job: a pod with this label would be queued by itself.
    queued = {_QUEUE: job.queue} if job.queue else {}
    marks = _marks(job.labels | queued, job.annotations)
    ttl = "" if job.ttl is None else f"  ttlSecondsAfterFinished: {job.ttl}\n"
    common = {**where, "most": job.most, "marks": marks, "ttl": ttl}
    if job.kind == "--job":
        parts += [SERVICE.format(**common), JOB.format(**common) + indent(spec, "  ")]
    elif job.kind == "--jobset":
        parts.append(JOBSET.format(**common) + indent(spec, " " * 10))
    else:
        runtime = TRAINER.format(**common, workers=job.workers)
        train_job = TRAIN_JOB.format(
            **common, image=yaml_value(job.image), command=yaml_value(job.command)
        )
        parts += [runtime + indent(spec, " " * 14), train_job]
    return head + "---\n".join(parts)


def _spec(job: _Job) -> str:
    """Return the specification of a Job."""
    limits: dict[str, int | str] = {"nvidia.com/gpu": job.gpus} if job.gpus else {}
    limits |= {"memory": job.memory} if job.memory else {}
    resources = "        resources:\n" if limits or job.cpus else ""
    if job.cpus:
        resources += f"          requests: {yaml_value({'cpu': job.cpus})}\n"
    if limits:
        resources += MEMORY_SAYS if job.memory else ""
        resources += f"          limits: {yaml_value(limits)}\n"
    account = f"serviceAccountName: {yaml_value(job.name)}"
    if not job.by_register:
        account = "automountServiceAccountToken: false"
    if job.kind == "--job":
        account += f"\n    subdomain: {yaml_value(job.name)}"
    secrets = [{"name": name} for name in job.pull_secrets]
    marks = _marks(job.labels, job.annotations)
    counts = "" if job.kind == "--trainer" else COUNTS.format(most=job.most)
    return counts + SPEC.format(
        account=account,
        backoff=5 * job.most,
        command=yaml_value(job.command),
        drain=job.drain_s,
        grace=round(job.drain_s) + AFTER_DRAIN_S,
        health=HEALTH_PORT,
        image=yaml_value(job.image),
        marks=indent(f"metadata:\n{marks}", "  ") if marks else "",
        name=job.name,
        pull_secrets=f"    imagePullSecrets: {yaml_value(secrets)}\n" if secrets else "",
        resources=resources,
        shm=yaml_value(job.shm),
        user=job.user,
    )


def _marks(labels: dict[str, str], annotations: dict[str, str]) -> str:
    """Lines of a metadata."""
    rows = {"labels": labels, "annotations": annotations}
    return "".join(f"  {name}: {yaml_value(row)}\n" for name, row in rows.items() if row)


def _record(run_id: str) -> str:
    from rallypoint.register.kubernetes.backend import name_of

    return name_of(run_id)


def _read(scanned: Scanned) -> _Job:
    if scanned.get("--image") is None:
        raise UsageError("the following arguments are required: --image")
    kinds = [kind for kind in _KINDS if scanned.get(kind) is not None]
    if len(kinds) > 1:
        raise UsageError(f"{' '.join(kinds)}: needs one of them")
    gpus = _number(scanned, "--gpus", 0, 0, MAX_WORKERS_PER_NODE)
    job = _Job(
        kind=kinds[0] if kinds else _KINDS[0],
        name=_name(scanned),
        namespace=_namespace(scanned),
        image=_image(scanned),
        most=nodes(_nodes(scanned))[1],
        gpus=gpus,
        cpus=_quantity(scanned, "--cpus", _CPUS, "a number of CPUs, like 8 or 500m"),
        memory=_quantity(scanned, "--memory", _QUANTITY, "a quantity of Kubernetes, like 64Gi"),
        shm=_quantity(scanned, "--shm", _QUANTITY, "a quantity of Kubernetes, like 64Gi") or _SHM,
        user=_number(scanned, "--user", int(_USER), 1, MAX_GIVEN),
        pull_secrets=tuple(map(_secret, scanned.all("--pull-secret"))),
        queue=_queue(scanned),
        labels=_pairs(scanned, "--label", _LABEL),
        annotations=_pairs(scanned, "--annotation", None),
        ttl=None if scanned.get("--ttl") is None else _number(scanned, "--ttl", 0, 0, MAX_GIVEN),
        workers=_number(scanned, "--nproc-per-node", gpus or 1, 1, MAX_WORKERS_PER_NODE),
        drain_s=_drain(scanned),
        by_register=scanned.read(KUBERNETES, "--rdzv-backend", "kubernetes") == "kubernetes",
        command=(),
    )
    if job.kind == "--trainer" and not job.by_register:
        raise UsageError("--rdzv-backend tcp: --trainer needs --rdzv-backend kubernetes")
    if (ttl := scanned.get("--ttl")) is not None and job.kind == "--trainer":
        raise ttl.wrong("a TrainJob is not removed by itself")
    return replace(job, command=_command(scanned, job))


def _nodes(scanned: Scanned) -> Value:
    return scanned.get("--nodes") or Value("2", "--nodes 2")


def _command(scanned: Scanned, job: _Job) -> tuple[str, ...]:
    """Return the command of an agent."""
    given, spares = _nodes(scanned), _number(scanned, "--spares", 0, 0, MAX_NODES)
    least, most = nodes(given)
    if most - spares < (1 if least == most else least):
        raise UsageError(f"--spares {spares}: leaves {max(most - spares, 0)} of {given.origin}")
    words = ["rallypoint", "run"]
    if job.kind != "--trainer":
        span = f"{least}:{most}" if least < most else str(most)
        words += [f"--nnodes={span}", f"--nproc-per-node={job.workers}"]
    elif least < most:
        raise given.wrong("a TrainJob has a fixed number of pods, like --nodes 4")
    if spares:
        words.append(f"--spares={spares}")
    if job.by_register:
        words.append("--rdzv-backend=kubernetes")
    else:
        first = f"{job.name}-node-0-0" if job.kind == "--jobset" else f"{job.name}-0"
        words.append(f"--rdzv-endpoint={first}.{job.name}:29400")
    words.append(f"--max-restarts={_number(scanned, '--max-restarts', 3, 0, MAX_GIVEN)}")
    words.append(f"--drain-deadline={job.drain_s:g}")
    return (*words, *map(container_word, generated_words(scanned.words)))


def _number(scanned: Scanned, flag: str, default: int, least: int, most: int) -> int:
    given = scanned.get(flag)
    return default if given is None else integer_within(given, least, most)


def _name(scanned: Scanned) -> str:
    from rallypoint.register.kubernetes.parameters import is_label

    given = scanned.get("--name") or Value("train", "--name train")
    # That of a Service begins with a letter.
    if not is_label(given.text) or len(given.text) > MAX_NAME or not given.text[0].isalpha():
        raise given.wrong(
            f"needs lower-case letters, digits and hyphens, a letter first, at most {MAX_NAME}"
        )
    return given.text


def _namespace(scanned: Scanned) -> str:
    from rallypoint.register.kubernetes.parameters import is_label

    given = scanned.get("--namespace") or Value("default", "--namespace default")
    if not is_label(given.text):
        raise given.wrong("needs the name of a namespace, like training")
    return given.text


def _image(scanned: Scanned) -> str:
    given = scanned.get("--image")
    assert given is not None, "it is required"
    if not _IMAGE.fullmatch(given.text):
        raise given.wrong("needs the name of an image, like registry/digits:1")
    return given.text


def _quantity(scanned: Scanned, flag: str, pattern: re.Pattern[str], needs: str) -> str:
    """Return the quantity as it was given, or an empty text if it was not given."""
    given = scanned.get(flag)
    if given is None:
        return ""
    if not pattern.fullmatch(given.text):
        raise given.wrong(f"needs {needs}")
    return given.text


def _secret(given: Value) -> str:
    from rallypoint.register.kubernetes.parameters import is_subdomain

    if not is_subdomain(given.text):
        raise given.wrong("needs the name of a Secret, like registry")
    return given.text


def _queue(scanned: Scanned) -> str:
    from rallypoint.register.kubernetes.parameters import is_subdomain

    given = scanned.get("--queue")
    if given is not None and not (is_subdomain(given.text) and _LABEL.fullmatch(given.text)):
        raise given.wrong("needs the name of a LocalQueue, like research")
    return given.text if given is not None else ""


def _pairs(scanned: Scanned, flag: str, values: re.Pattern[str] | None) -> dict[str, str]:
    """`values`: all that a value may be; None: any text."""
    from rallypoint.register.kubernetes.parameters import is_subdomain

    found: dict[str, str] = {}
    for given in scanned.all(flag):
        key, equals, value = given.text.partition("=")
        prefix, slash, name = key.rpartition("/")
        if not equals or not (is_subdomain(prefix) if slash else True) or not _KEY.fullmatch(name):
            raise given.wrong("needs KEY=VALUE, with a key of Kubernetes, like example.com/team=me")
        if values is not None and not values.fullmatch(value):
            raise given.wrong("needs a value of at most 63 letters, digits, and - _ .")
        if key == _QUEUE:
            raise given.wrong("needs --queue NAME, by which the pods do not get that label")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise given.wrong("needs UTF-8: YAML takes nothing else")
        found[key] = value
    return found


def _drain(scanned: Scanned) -> float:
    given = scanned.get("--drain-deadline") or Value("60", "--drain-deadline 60")
    found = seconds(given)
    if found > MAX_WAIT_S:
        raise given.wrong(f"needs at most {MAX_WAIT_S:.0f} seconds")
    return found
