"""`rallypoint generate kubernetes`: a job's objects for Kubernetes, with comments that say why."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from rallypoint.cli.generate.quoting import container_word, fill, yaml_value
from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.run_options.wrong_script import generated_words
from rallypoint.cli.values import Given, integer_within, nodes, seconds
from rallypoint.core.outcomes import Afterwards, codes_of
from rallypoint.core.settings import (
    ENV_STYLES,
    MAX_GIVEN,
    MAX_NODES,
    MAX_WAIT_S,
    MAX_WORKERS_PER_NODE,
    Setting,
)
from rallypoint.errors import UsageError

AFTER_DRAIN_S = 30
"""The seconds between the drain deadline of a pod and its SIGKILL."""
HEALTH_PORT = 29480
MAX_NAME = 52
"""The longest name of a job, in characters. Kubernetes appends to it for the names of pods, and a
label has 63 characters."""
_QUEUE = "kueue.x-k8s.io/queue-name"
_SHM, _USER = "8Gi", "1000"
_KINDS = ("job", "jobset", "trainer")
_QUANTITY = re.compile(r"\d+(\.\d+)?([kMGTPE]|[KMGTPE]i)?", re.ASCII)
_CPUS = re.compile(r"\d+m|\d+(\.\d{1,3})?", re.ASCII)
_PART = r"[a-z0-9]+([._-]+[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:\d+)?/)?{_PART}(/{_PART})*(:\w[\w.-]{{0,127}})?"
    r"(@[a-z0-9]+:[0-9A-Fa-f]+)?",
    re.ASCII,
)
"""The pattern of an image's name: a path, perhaps with a registry, a tag and a digest."""
_KEY = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?", re.ASCII)
_LABEL = re.compile(rf"|{_KEY.pattern}", re.ASCII)

KUBERNETES = Command(
    "generate kubernetes",
    """\
usage: rallypoint generate kubernetes --image IMAGE [options] [SCRIPT [its arguments]]

Print YAML that runs SCRIPT (train.py) in pods, with one agent in each pod. Read
it, edit it, and pass it to kubectl; its comments explain it.

  rallypoint generate kubernetes --image me/digits:1 --nodes 4 --gpus 8 train.py \\
      | kubectl apply -f -
""",
    (
        (
            "Objects",
            (
                Setting("--job", "", "an Indexed Job and a headless Service (this is the default)"),
                Setting("--jobset", "", "a JobSet, which needs JobSet in the cluster"),
                Setting("--trainer", "", "a TrainingRuntime and a TrainJob of Kubeflow Trainer v2"),
                Setting("--name", "NAME", "name of the job and its objects", default="train"),
                Setting("--namespace", "NAME", "namespace of all objects", default="default"),
                Setting("--queue", "NAME", "queue of Kueue that admits the job"),
                Setting(
                    "--label", "KEY=VALUE", "label of job and pods; repeatable", repeatable=True
                ),
                Setting(
                    "--annotation",
                    "KEY=VALUE",
                    "annotation of job and pods; repeatable",
                    repeatable=True,
                ),
                Setting(
                    "--ttl",
                    "SECONDS",
                    "remove the Job or JobSet and its pods this long after its end",
                    default="never",
                ),
            ),
        ),
        (
            "Pods",
            (
                Setting("--image", "IMAGE", "with rallypoint, Python and SCRIPT", required=True),
                Setting(
                    "--nodes",
                    "N|MIN:MAX",
                    "number of pods, with the spare ones; MIN:MAX: the job starts with MIN",
                    default="2",
                ),
                Setting("--gpus", "N", "GPUs of each pod (nvidia.com/gpu)", default="none"),
                Setting("--cpus", "N", "CPUs that each pod asks for, like 8", default="none"),
                Setting("--memory", "SIZE", "memory of each pod, like 64Gi", default="no limit"),
                Setting("--shm", "SIZE", "limit of /dev/shm, part of that memory", default=_SHM),
                Setting("--user", "UID", "user id of all processes", default=_USER),
                Setting(
                    "--pull-secret",
                    "NAME",
                    "Secret for pulling the image; repeatable",
                    repeatable=True,
                ),
            ),
        ),
        (
            "Options of rallypoint run",
            (
                Setting("--spares", "N", "number of --nodes that stand by", default="0"),
                Setting("--nproc-per-node", "N", "workers of a pod", default="its GPUs, or 1"),
                Setting("--max-restarts", "N", "restarts after worker failures", default="3"),
                Setting(
                    "--env-style",
                    "|".join(ENV_STYLES),
                    "also set the variables of these for workers",
                    kind="styles",
                    default="torch",
                ),
                Setting(
                    "--drain-deadline",
                    "SECONDS",
                    "time for a last checkpoint when a pod is evicted",
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


def text(scanned: Scanned) -> str:
    """Return the YAML of the job's objects. Raises UsageError."""
    if scanned.get("--image") is None:
        raise UsageError("the following arguments are required: --image")
    kinds = [kind for kind in _KINDS if scanned.get(f"--{kind}") is not None] or ["job"]
    if len(kinds) > 1:
        raise UsageError(f"{' '.join(f'--{kind}' for kind in kinds)}: needs one of them")
    values = _values(scanned, *kinds)
    record = fill("record.yaml", values) + "---\n" if values["account"] else ""
    values["spec"] = fill("spec.yaml", values).rstrip()
    return fill("token.yaml", values) + record + fill(f"{kinds[0]}.yaml", values)


def _values(scanned: Scanned, kind: str) -> dict[str, Any]:
    """Return the values for the names in the templates, checked. Raises UsageError."""
    gpus = _number(scanned, "--gpus", 0, 0, MAX_WORKERS_PER_NODE)
    names = _names(scanned)
    name, most = names["name"], nodes(_nodes(scanned))[1]
    rows = {**_pods(scanned, gpus), **_marks(scanned)}
    ttl = None if scanned.get("--ttl") is None else _number(scanned, "--ttl", 0, 0, MAX_GIVEN)
    workers = _number(scanned, "--nproc-per-node", gpus or 1, 1, MAX_WORKERS_PER_NODE)
    drain_s = _drain(scanned)
    by_register = scanned.read(KUBERNETES, "--rdzv-backend", "kubernetes") == "kubernetes"
    if kind == "trainer" and not by_register:
        raise UsageError("--rdzv-backend tcp: --trainer needs --rdzv-backend kubernetes")
    if (given := scanned.get("--ttl")) is not None and kind == "trainer":
        raise given.wrong("a TrainJob is not removed by itself")
    first = f"{name}-node-0-0" if kind == "jobset" else f"{name}-0"
    command = [
        *_counts(scanned, kind, workers),
        "--rdzv-backend=kubernetes" if by_register else f"--rdzv-endpoint={first}.{name}:29400",
        f"--max-restarts={_number(scanned, '--max-restarts', 3, 0, MAX_GIVEN)}",
        f"--drain-deadline={drain_s:g}",
        *map(container_word, generated_words(scanned.words)),
    ]
    return {
        **names,
        **rows,
        "account": yaml_value(name) if by_register else None,
        "backoff": 5 * most,
        "command": yaml_value(command),
        "drain": f"{drain_s:g}",
        "final_codes": codes_of(Afterwards.NOT_AGAIN) + codes_of(Afterwards.BY_A_PERSON),
        "free_codes": codes_of(Afterwards.AT_NO_COST),
        "grace": round(drain_s) + AFTER_DRAIN_S,
        "health": HEALTH_PORT,
        "nodes": most,
        "pods": None if kind == "trainer" else most,
        "subdomain": yaml_value(name) if kind == "job" else None,
        "tokenless": None if by_register else True,
        "ttl": ttl,
        "workers": workers,
    }


def _names(scanned: Scanned) -> dict[str, str]:
    from rallypoint.register.kubernetes.backend import name_of
    from rallypoint.register.kubernetes.parameters import is_label

    def is_name(text: str) -> bool:
        # That of a Service begins with a letter.
        return is_label(text) and len(text) <= MAX_NAME and text[0].isalpha()

    needs = f"lower-case letters, digits and hyphens, a letter first, at most {MAX_NAME}"
    name = _checked(scanned, "--name", is_name, needs) or "train"
    needs = "the name of a namespace, like training"
    namespace = _checked(scanned, "--namespace", is_label, needs) or "default"
    needs = "the name of an image, like registry/digits:1"
    image = yaml_value(_checked(scanned, "--image", _IMAGE.fullmatch, needs))
    return {"name": name, "namespace": namespace, "image": image, "record": name_of(name)}


def _pods(scanned: Scanned, gpus: int) -> dict[str, object]:
    """Return the templates' values for a pod's resources, user and Secrets. Raises UsageError."""
    from rallypoint.register.kubernetes.parameters import is_subdomain

    needs = "a number of CPUs, like 8 or 500m"
    cpus = _checked(scanned, "--cpus", _CPUS.fullmatch, needs)
    needs = "a quantity of Kubernetes, like 64Gi"
    memory = _checked(scanned, "--memory", _QUANTITY.fullmatch, needs)
    shm = _checked(scanned, "--shm", _QUANTITY.fullmatch, needs) or _SHM
    user = _number(scanned, "--user", int(_USER), 1, MAX_GIVEN)
    needs = "the name of a Secret, like registry"
    secrets = [_check(each, is_subdomain, needs) for each in scanned.all("--pull-secret")]
    requests = {"cpu": cpus} if cpus else {}
    limits = ({"nvidia.com/gpu": gpus} if gpus else {}) | ({"memory": memory} if memory else {})
    return {
        "resources": requests or limits or None,
        "requests": _given(requests),
        "limits": _given(limits),
        "memory": memory or None,
        "shm": yaml_value(shm),
        "user": user,
        "pull_secrets": _given([{"name": name} for name in secrets]),
    }


def _marks(scanned: Scanned) -> dict[str, object]:
    """Return the templates' values for labels and annotations. Raises UsageError."""
    from rallypoint.register.kubernetes.parameters import is_subdomain

    def is_queue(text: str) -> bool:
        return is_subdomain(text) and _LABEL.fullmatch(text) is not None

    needs = "the name of a LocalQueue, like research"
    queue = _checked(scanned, "--queue", is_queue, needs)
    labels = _pairs(scanned, "--label", _LABEL)
    annotations = _pairs(scanned, "--annotation", None)
    return {
        # The queue is that of the whole job: a pod with this label would be queued by itself.
        "job_labels": _given(labels | ({_QUEUE: queue} if queue else {})),
        "labels": _given(labels),
        "annotations": _given(annotations),
        "marks": labels or annotations or None,
    }


def _given(row: Collection[object]) -> str | None:
    """Return a list or a mapping as YAML; None for an empty one, which is left out."""
    return yaml_value(row) if row else None


def _nodes(scanned: Scanned) -> Given:
    return scanned.get("--nodes") or Given("2", "--nodes 2")


def _counts(scanned: Scanned, kind: str, workers: int) -> list[str]:
    """Return the first words of the agent's command, with the numbers of nodes and workers.

    A TrainJob (`kind` is trainer) has those two numbers elsewhere. Raises UsageError.
    """
    given, spares = _nodes(scanned), _number(scanned, "--spares", 0, 0, MAX_NODES)
    least, most = nodes(given)
    if most - spares < (1 if least == most else least):
        raise UsageError(f"--spares {spares}: leaves {max(most - spares, 0)} of {given.origin}")
    words = ["rallypoint", "run"]
    if kind != "trainer":
        span = f"{least}:{most}" if least < most else str(most)
        words += [f"--nnodes={span}", f"--nproc-per-node={workers}"]
    elif least < most:
        raise given.wrong("a TrainJob has a fixed number of pods, like --nodes 4")
    if styles := scanned.read(KUBERNETES, "--env-style", ()):
        words.append(f"--env-style={','.join(styles)}")
    return [*words, f"--spares={spares}"] if spares else words


def _number(scanned: Scanned, flag: str, default: int, least: int, most: int) -> int:
    given = scanned.get(flag)
    return default if given is None else integer_within(given, least, most)


def _checked(scanned: Scanned, flag: str, fits: Callable[[str], object], needs: str) -> str:
    """Return the text of an option; empty: it was not given. Raises UsageError if not `fits`."""
    given = scanned.get(flag)
    return "" if given is None else _check(given, fits, needs)


def _check(given: Given, fits: Callable[[str], object], needs: str) -> str:
    if not fits(given.text):
        raise given.wrong(f"needs {needs}")
    return given.text


def _pairs(scanned: Scanned, flag: str, values: re.Pattern[str] | None) -> dict[str, str]:
    """Return the KEY=VALUE pairs of a repeatable option. Raises UsageError.

    `values`: the pattern that each value has to match; None: any text.
    """
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
    given = scanned.get("--drain-deadline") or Given("60", "--drain-deadline 60")
    found = seconds(given)
    if found > MAX_WAIT_S:
        raise given.wrong(f"needs at most {MAX_WAIT_S:.0f} seconds")
    return found
