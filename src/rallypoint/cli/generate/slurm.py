"""`rallypoint generate slurm`: a batch script for `sbatch`, with comments that say why."""

from __future__ import annotations

import re

from rallypoint.cli.generate.quoting import bash_word, fill
from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.run_options.wrong_script import generated_words
from rallypoint.cli.values import Given, integer, integer_within, nodes, seconds
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

_TIME = re.compile(r"(\d+-)?\d+(:\d\d?){0,2}", re.ASCII)
_NAME = re.compile(r"[\w.+-]{1,128}")
TO_STOP_SHARE = 10
"""The divisor of --stop-before that gives the time left after the longest drain."""

SLURM = Command(
    "generate slurm",
    """\
usage: rallypoint generate slurm [options] [SCRIPT [its arguments]]

Print a batch script that runs SCRIPT (train.py) on the nodes of a Slurm job, with
one agent on each node. Read it, edit it, and pass it to sbatch; its comments
explain it.

  rallypoint generate slurm --nodes 4 --spares 1 --gpus 8 train.py > train.sbatch
  sbatch train.sbatch
""",
    (
        (
            "Slurm job",
            (
                Setting("--nodes", "N", "number of nodes, with the spare ones", default="2"),
                Setting("--gpus", "N", "GPUs of each node", default="none"),
                Setting("--cpus", "N", "CPUs that the workers of a node share", default="Slurm's"),
                Setting("--time", "[D-]H:MM:SS", "time limit, or minutes", default="1:00:00"),
                Setting(
                    "--name", "NAME", "name of the job and of its log directory", default="train"
                ),
                Setting("--partition", "NAME", "partition of the job", default="Slurm's default"),
                Setting("--account", "NAME", "account that pays", default="Slurm's default"),
            ),
        ),
        (
            "Options of rallypoint run",
            (
                Setting("--spares", "N", "number of --nodes that stand by", default="0"),
                Setting("--nproc-per-node", "N", "workers of a node", default="its GPUs, or 1"),
                Setting("--max-restarts", "N", "restarts after worker failures", default="3"),
                Setting(
                    "--env-style",
                    "|".join(ENV_STYLES),
                    "also set the variables of these for workers",
                    kind="styles",
                    default="torch",
                ),
                Setting(
                    "--stop-before",
                    "SECONDS",
                    "save a checkpoint and stop this long before the time limit; then Slurm starts"
                    " the job again",
                    default="120",
                ),
            ),
        ),
    ),
    runs_a_script=True,
)


def text(scanned: Scanned) -> str:
    """Return the batch script. Raises UsageError."""

    def given(flag: str, default: str) -> Given:
        return scanned.get(flag) or Given(default, f"{flag} {default}")

    name, limit = given("--name", "train"), given("--time", "1:00:00")
    if not _NAME.fullmatch(name.text):
        raise name.wrong("needs letters, digits, and . _ + - only, like train")
    if not _TIME.fullmatch(limit.text):
        raise limit.wrong("needs a time limit as Slurm has it, like 1:00:00 or 2-12:00:00")
    chosen = {}
    for article, option in (("a", "partition"), ("an", "account")):
        value = scanned.get(f"--{option}")
        if value is not None and not _NAME.fullmatch(value.text):
            raise value.wrong(f"needs the name of {article} {option}")
        chosen[option] = None if value is None else value.text
    gpus = integer_within(given("--gpus", "0"), 0, MAX_WORKERS_PER_NODE)
    cpus = integer_within(given("--cpus", "0"), 0, MAX_GIVEN)
    before = given("--stop-before", "120")
    before_s = seconds(before, positive=True)
    if before_s > MAX_WAIT_S:
        raise before.wrong(f"needs {MAX_WAIT_S:g} seconds or less")
    if before_s >= _seconds_of(limit.text):
        raise UsageError(f"{before.origin}, {limit.origin}: leaves no time to work")
    command = generated_words(scanned.words)
    again = [*codes_of(Afterwards.AGAIN), *codes_of(Afterwards.AT_NO_COST)]
    values = {
        **chosen,
        "name": name.text,
        "nodes": _nodes(given("--nodes", "2"), given("--spares", "0")),
        "time": limit.text,
        "gpus": gpus or None,
        "cpus": cpus or None,
        "no_cpus": None if cpus else True,
        "cpus_option": f" --cpus-per-task={cpus}" if cpus else "",
        "again": " | ".join(f"{code}:*" for code in again),
        "options": _options(scanned),
        "before": f"{before_s:g}",
        "drain": f"{before_s - before_s / TO_STOP_SHARE:g}",
        "command": " ".join(map(bash_word, command)),
    }
    return fill("slurm.sh", values)


def _seconds_of(limit: str) -> float:
    """Return the seconds of a time limit in one of Slurm's forms.

    MINUTES[:SECONDS], HOURS:MINUTES:SECONDS or DAYS-HOURS[:MINUTES[:SECONDS]].
    """
    days, _, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not days and len(parts) < 3:
        parts.insert(0, 0)
    hours, minutes, seconds_ = (*parts, 0, 0)[:3]
    return 86_400 * int(days or 0) + 3600 * hours + 60 * minutes + seconds_


def _nodes(wanted: Given, spares: Given) -> int:
    least, most = nodes(wanted)
    if least != most:
        raise wanted.wrong("needs one number: Slurm gives a job a fixed number of nodes")
    if integer_within(spares, 0, MAX_NODES) >= most:
        raise UsageError(f"{wanted.origin}, {spares.origin}: leaves no node to work")
    return most


def _options(scanned: Scanned) -> str:
    options = ""
    if (spares := scanned.get("--spares")) is not None and integer(spares):
        options += f" --spares {integer(spares)}"
    if (workers := scanned.get("--nproc-per-node")) is not None:
        options += f" --nproc-per-node {integer_within(workers, 1, MAX_WORKERS_PER_NODE)}"
    if styles := scanned.read(SLURM, "--env-style", ()):
        options += f" --env-style {','.join(styles)}"
    restarts = scanned.get("--max-restarts")
    number = 3 if restarts is None else integer_within(restarts, 0, MAX_GIVEN)
    return f"{options} --max-restarts {number}"
