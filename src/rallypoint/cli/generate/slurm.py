"""`rallypoint generate slurm`: a batch script for `sbatch`, with comments that say why."""

from __future__ import annotations

import re

from rallypoint.cli.generate.quoting import bash_word
from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.run_options.wrong_script import generated_words
from rallypoint.cli.values import Value, integer, integer_within, nodes, seconds
from rallypoint.core.settings import (
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
"""A tenth of --stop-before is left when a drain that has taken all of its time has ended."""

SLURM = Command(
    "generate slurm",
    """\
usage: rallypoint generate slurm [options] [SCRIPT [its arguments]]

Print a batch script that runs SCRIPT (train.py) on the nodes of a Slurm job,
one agent on each, with comments: to be read, changed, and given to sbatch.

  rallypoint generate slurm --nodes 4 --spares 1 --gpus 8 train.py > train.sbatch
  sbatch train.sbatch
""",
    (
        (
            "What Slurm gets",
            (
                Setting("--nodes", "N", "nodes, the spare ones included", default="2"),
                Setting("--gpus", "N", "GPUs of each node", default="none"),
                Setting("--cpus", "N", "CPUs that the workers of a node share", default="Slurm's"),
                Setting("--time", "[D-]H:MM:SS", "the time limit; or minutes", default="1:00:00"),
                Setting(
                    "--name", "NAME", "of the job, and of the folder of its logs", default="train"
                ),
                Setting("--partition", "NAME", "where it runs", default="Slurm's default"),
                Setting("--account", "NAME", "who pays for it", default="Slurm's default"),
            ),
        ),
        (
            "Options of rallypoint run",
            (
                Setting("--spares", "N", "so many of --nodes stand by", default="0"),
                Setting("--nproc-per-node", "N", "workers of a node", default="its GPUs, or 1"),
                Setting("--max-restarts", "N", "restarts after worker failures", default="3"),
                Setting(
                    "--stop-before",
                    "SECONDS",
                    "save a checkpoint and stop so long before the time limit; then Slurm starts"
                    " the job again",
                    default="120",
                ),
            ),
        ),
    ),
    runs_a_script=True,
)

_NO_CPUS = """\
##SBATCH --cpus-per-task=N       # without it, Slurm may give all workers of a node one CPU
"""
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1      # one agent on each node; it starts the workers
#SBATCH --time={time}
{further}\
#SBATCH --no-kill                # when a node is lost, the job keeps the others
#SBATCH --requeue                # Slurm, and the end of this script, may start the job again
#SBATCH --open-mode=append       # what it prints then does not replace what was printed before
#SBATCH --output={name}-%j.out

logs="$PWD/{name}-$SLURM_JOB_ID/run-${{SLURM_RESTART_COUNT:-0}}"
mkdir -p "$logs"

# The secret of the nodes: the token of this run alone. It opens no other job of yours, is in no
# command line and in no environment, and is removed when this script ends.
id="slurm-$SLURM_JOB_ID-run-${{SLURM_RESTART_COUNT:-0}}"
trap 'rm -f "$logs/token"' EXIT
(umask 077 && rallypoint token --run-id "$id" > "$logs/token") || exit
unset RALLYPOINT_TOKEN           # if sbatch has passed it on

# In an array, SLURM_JOB_ID may mean all of its jobs: squeue and scontrol need the one.
job="${{SLURM_ARRAY_TASK_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}"
job="${{job:-$SLURM_JOB_ID}}"

# When the time limit is reached. Slurm before 23.02 tells it by no variable.
end="$(squeue --noheader --jobs "$job" --format %e)"

# --no-kill, --kill-on-bad-exit=0 and --wait=0: a node or an agent that is lost does not end the
# others. Each node has a log of its own. No --signal is needed: with --stop-before each agent
# knows when to save a checkpoint and stop.
srun --no-kill --kill-on-bad-exit=0 --wait=0{cpus} --output "$logs/%N.log" \\
    rallypoint run --rdzv-id "$id" --token-file "$logs/token"{options} \\
    --stop-at "$end" --stop-before {before} --drain-deadline {drain} \\
    --json-summary "$logs/" \\
    {command}
step=$?

# How the job has ended, whatever became of single nodes: its line, and its exit code.
rallypoint verdict "$logs"
code=$?
case "$code:$step" in
    # A mistake in the command line, which is the same the next time.
    75:2) code=2 ;;
    # The time was over, nodes were missing, or a signal (--signal) said that the job has to leave.
    # It is worth starting again. What fails by itself is not.
    75:* | 143:*) scontrol requeue "$job" ;;
esac
exit "$code"
"""


def text(scanned: Scanned) -> str:
    """The script. Raises UsageError."""

    def given(flag: str, default: str) -> Value:
        return scanned.get(flag) or Value(default, f"{flag} {default}")

    name, limit = given("--name", "train"), given("--time", "1:00:00")
    if not _NAME.fullmatch(name.text):
        raise name.wrong("needs letters, digits, and . _ + - only, like train")
    if not _TIME.fullmatch(limit.text):
        raise limit.wrong("needs a time limit as Slurm has it, like 1:00:00 or 2-12:00:00")
    further = ""
    for article, option in (("a", "partition"), ("an", "account")):
        if (chosen := scanned.get(f"--{option}")) is not None:
            if not _NAME.fullmatch(chosen.text):
                raise chosen.wrong(f"needs the name of {article} {option}")
            further += f"#SBATCH --{option}={chosen.text}\n"
    if gpus := integer_within(given("--gpus", "0"), 0, MAX_WORKERS_PER_NODE):
        further += f"#SBATCH --gpus-per-node={gpus}\n"
    cpus = integer_within(given("--cpus", "0"), 0, MAX_GIVEN)
    further += f"#SBATCH --cpus-per-task={cpus}\n" if cpus else _NO_CPUS
    before = given("--stop-before", "120")
    before_s = seconds(before, positive=True)
    if before_s > MAX_WAIT_S:
        raise before.wrong(f"needs {MAX_WAIT_S:g} seconds or less")
    if before_s >= _seconds_of(limit.text):
        raise UsageError(f"{before.origin}, {limit.origin}: leaves no time to work")
    command = generated_words(scanned.words)
    return _SCRIPT.format(
        name=name.text,
        nodes=_nodes(given("--nodes", "2"), given("--spares", "0")),
        time=limit.text,
        further=further,
        cpus=f" --cpus-per-task={cpus}" if cpus else "",
        options=_options(scanned),
        before=f"{before_s:g}",
        drain=f"{before_s - before_s / TO_STOP_SHARE:g}",
        command=" ".join(map(bash_word, command)),
    )


def _seconds_of(limit: str) -> float:
    """Return the seconds of a limit: MINUTES[:SECONDS], HOURS:MINUTES:SECONDS or
    DAYS-HOURS[:MINUTES[:SECONDS]]."""
    days, _, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not days and len(parts) < 3:
        parts.insert(0, 0)
    hours, minutes, seconds_ = (*parts, 0, 0)[:3]
    return 86_400 * int(days or 0) + 3600 * hours + 60 * minutes + seconds_


def _nodes(wanted: Value, spares: Value) -> int:
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
    restarts = scanned.get("--max-restarts")
    number = 3 if restarts is None else integer_within(restarts, 0, MAX_GIVEN)
    return f"{options} --max-restarts {number}"
