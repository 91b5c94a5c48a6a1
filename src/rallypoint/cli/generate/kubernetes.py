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
    SERVICE,
    SPEC,
    TRAIN_JOB,
    TRAINER,
)
from rallypoint.cli.generate.quoting import container_word, yaml_value
from rallypoint.cli.generate.rbac import RULES
from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.values import Value, integer_within, nodes, seconds
from rallypoint.core.settings import MAX_GIVEN, MAX_NODES, MAX_WAIT_S, MAX_WORKERS_PER_NODE, Setting
from rallypoint.errors import UsageError

AFTER_DRAIN_S = 30
"""So much longer than the drain deadline a pod has until SIGKILL."""
HEALTH_PORT = 29480
MAX_NAME = 52
"""Of a label's 63 characters. Kubernetes appends to it for the names of pods."""
_KINDS = ("--job", "--jobset", "--trainer")
_QUANTITY = re.compile(r"\d+(\.\d+)?([kMGTPE]|[KMGTPE]i)?", re.ASCII)

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
                Setting("--name", "NAME", "of the job", default="train"),
                Setting("--namespace", "NAME", "of all objects", default="default"),
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
                Setting("--memory", "SIZE", "memory of each pod, like 64Gi", default="no limit"),
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
    """What was asked for."""

    kind: str
    name: str
    namespace: str
    image: str
    most: int
    """Pods."""
    gpus: int
    memory: str
    workers: int
    drain_s: float
    by_register: bool
    command: tuple[str, ...]


def text(scanned: Scanned) -> str:
    """The YAML. Raises UsageError."""
    job = _read(scanned)
    head = HEAD.format(namespace=job.namespace)
    parts = [RULES.format(namespace=job.namespace, space=job.namespace, account="rallypoint")]
    spec = _spec(job)
    common = {"name": job.name, "namespace": job.namespace, "most": job.most}
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
    return head + "---\n".join(parts if job.by_register else parts[1:])


def _spec(job: _Job) -> str:
    """Of a Job."""
    limits: dict[str, int | str] = {"nvidia.com/gpu": job.gpus} if job.gpus else {}
    limits |= {"memory": job.memory} if job.memory else {}
    resources = "        resources:\n" + (MEMORY_SAYS if job.memory else "")
    resources += f"          limits: {yaml_value(limits)}\n"
    account = "serviceAccountName: rallypoint"
    if not job.by_register:
        account = "automountServiceAccountToken: false"
    if job.kind == "--job":
        account += f"\n    subdomain: {yaml_value(job.name)}"
    counts = "" if job.kind == "--trainer" else COUNTS.format(most=job.most)
    return counts + SPEC.format(
        account=account,
        backoff=5 * job.most,
        command=yaml_value(job.command),
        drain=job.drain_s,
        grace=round(job.drain_s) + AFTER_DRAIN_S,
        health=HEALTH_PORT,
        image=yaml_value(job.image),
        name=job.name,
        resources=resources if limits else "",
    )


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
        memory=_memory(scanned),
        workers=_number(scanned, "--nproc-per-node", gpus or 1, 1, MAX_WORKERS_PER_NODE),
        drain_s=_drain(scanned),
        by_register=scanned.read(KUBERNETES, "--rdzv-backend", "kubernetes") == "kubernetes",
        command=(),
    )
    if job.kind == "--trainer" and not job.by_register:
        raise UsageError("--rdzv-backend tcp: --trainer needs --rdzv-backend kubernetes")
    return replace(job, command=_command(scanned, job))


def _nodes(scanned: Scanned) -> Value:
    return scanned.get("--nodes") or Value("2", "--nodes 2")


def _command(scanned: Scanned, job: _Job) -> tuple[str, ...]:
    """That of an agent."""
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
    return (*words, *map(container_word, scanned.words or ("train.py",)))


def _number(scanned: Scanned, flag: str, default: int, least: int, most: int) -> int:
    given = scanned.get(flag)
    return default if given is None else integer_within(given, least, most)


def _name(scanned: Scanned) -> str:
    from rallypoint.rendezvous.kubernetes.parameters import is_label

    given = scanned.get("--name") or Value("train", "--name train")
    # That of a Service begins with a letter.
    if not is_label(given.text) or len(given.text) > MAX_NAME or not given.text[0].isalpha():
        raise given.wrong(
            f"needs lower-case letters, digits and hyphens, a letter first, at most {MAX_NAME}"
        )
    return given.text


def _namespace(scanned: Scanned) -> str:
    from rallypoint.rendezvous.kubernetes.parameters import is_label

    given = scanned.get("--namespace") or Value("default", "--namespace default")
    if not is_label(given.text):
        raise given.wrong("needs the name of a namespace, like training")
    return given.text


def _image(scanned: Scanned) -> str:
    given = scanned.get("--image")
    if given is None or not given.text or given.text.split() != [given.text]:
        raise UsageError("--image: needs the name of an image, like registry/digits:1")
    return given.text


def _memory(scanned: Scanned) -> str:
    given = scanned.get("--memory")
    if given is not None and not _QUANTITY.fullmatch(given.text):
        raise given.wrong("needs a quantity of Kubernetes, like 64Gi")
    return given.text if given is not None else ""


def _drain(scanned: Scanned) -> float:
    given = scanned.get("--drain-deadline") or Value("60", "--drain-deadline 60")
    found = seconds(given)
    if found > MAX_WAIT_S:
        raise given.wrong(f"needs at most {MAX_WAIT_S:.0f} seconds")
    return found
