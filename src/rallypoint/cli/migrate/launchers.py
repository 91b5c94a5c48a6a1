"""The options of other launchers, and their translation.

Pure data.

A row: names, 0 to 2 values, `=`, and the translation: options of Rallypoint with `;` between them
(`{}` is the value), `@` and the name of a fact for `translate.py`, or nothing. After `|` stands the
difference, for the user; after `!`, why there is no equivalent.

From the pages of these launchers: horovodrun 0.28, DeepSpeed 0.19, Open MPI 4 and 5, MPICH's and
Intel's Hydra, nvidia-resiliency-ext 0.4 to 0.7, Slurm 22 to 24.
"""

from __future__ import annotations

from typing import NamedTuple

_BINDING = "!see --numa-binding, which binds workers to CPUs near their GPU"
_START = "--hang-timeout N,start=S limits the time before the first step"
_PHASES = "see --hang-timeout N,NAME=S and rallypoint.worker.phase(NAME)"
_TABLES = {
    "horovodrun": """
-np --np --num-proc 1 = @np
-H --hosts 1 = @hosts
-hostfile --hostfile 1 = @hostfile
--min-np --min-num-proc 1 = @min
--max-np --max-num-proc 1 = @max
--slots-per-host --slots 1 = @per-node
--host-discovery-script 1 = | !a host joins a job by rallypoint run with the same --rdzv-endpoint
-p --ssh-port 1 = --ssh ssh -p {}
-i --ssh-identity-file 1 = --ssh ssh -i {}
--network-interfaces --network-interface 1 = --env NCCL_SOCKET_IFNAME={};--env GLOO_SOCKET_IFNAME={}
--start-timeout 1 = --rdzv-conf join_timeout={}
--output-filename 1 = --log-dir {};--tee 3
--reset-limit 1 = --max-restarts {} | only failures of workers count, over the whole job
--verbose --disable-cache --gloo --mpi --jsrun --tcp 0 =
--autotune --timeline-mark-cycles --no-stall-check --hierarchical-allreduce 0 = | !
--fusion-threshold-mb --cycle-time-ms --cache-capacity --timeline-filename --log-level 1 = | !
--config-file --mpi-args --elastic-timeout --blacklist-cooldown-range --num-nccl-streams 1 = | !
""",
    "deepspeed": f"""
-H --hostfile 1 = @hostfile
-i --include 1 = @include
-e --exclude 1 = @exclude
--num-nodes 1 = @nodes
--num-gpus --num-accelerators 1 = @per-node
--force-multi --no-ssh-check 0 =
--master-addr 1 = @master-addr
--master-port 1 = @master-port
--node-rank 1 = --node-rank {{}}
--no-ssh 0 = @no-ssh
--module 0 = -m
--no-python 0 = --no-python
--no-local-rank 0 = @no-local-rank
--ssh-port 1 = --ssh ssh -p {{}}
--save-pid 0 = | !rallypoint status finds the job
--enable-each-rank-log 1 = --log-dir {{}};--tee 3
--bind-cores-to-rank 0 = | {_BINDING}
--launcher 1 = | hosts are reached by ssh
--launcher-args --venv-script --bind-core-list --autotuning 1 = | !
--log-level 1 =
-q --quiet 0 = --quiet
""",
    "mpirun": f"""
-n -np --np -c --n 1 = @np
-H -host --host -hosts --hosts 1 = @hosts
-hostfile --hostfile -machinefile --machinefile -f 1 = @hostfile
-ppn -perhost -N -npernode --npernode 1 = @per-node
-map-by --map-by 1 = @map-by
-x 1 = --env {{}}
-genv -env 2 = --env {{}}
-wd -wdir --wdir 1 = --chdir {{}}
-output-filename --output-filename 1 = --log-dir {{}};--tee 3
-timeout --timeout 1 = --max-runtime {{}} | workers are asked for a checkpoint first
-tag-output --tag-output -prepend-rank -l 0 = --output prefix
-bind-to --bind-to -rank-by --rank-by -rankfile --rankfile 1 = | {_BINDING}
-mca --mca -gmca --gmca --prtemca --pmixmca 2 = | it is for MPI itself, which starts no worker
-prefix --prefix -bootstrap -launcher -rmk -iface 1 = | hosts are reached by ssh
-genvall -oversubscribe --oversubscribe -q --quiet -v --verbose --allow-run-as-root 0 =
-report-bindings --report-bindings --display-map --timestamp-output --use-hwthread-cpus 0 =
""",
    "ft_launcher": f"""
--ft-rank-heartbeat-timeout 1 = --hang-timeout {{}} | counts steps that workers tell, not heartbeats
--ft-max-no-progress-restarts 1 = --max-no-progress {{}} | counts equal failures without progress
--ft-restart-policy 1 = | a failure restarts all workers, as any-failed does
--ft-initial-rank-heartbeat-timeout 1 = | !a worker that has told no step yet never hangs: {_START}
--ft-rank-section-timeouts --ft-rank-out-of-section-timeout 1 = | !{_PHASES}
--ft-cfg-path --ft-fault-tol-cfg-path 1 = | !its file is not read: options stand for its values
--ft-ignore-missing-fault-tol-cfg 0 =
""",
    "srun": """
-N --nodes 1 = @nodes
-n --ntasks 1 = @np
--ntasks-per-node 1 = @per-node
-c --cpus-per-task 1 = @--cpus-per-task
--gpus-per-task 1 = @--gpus-per-node
""",
}
_SWITCHES = """
contiguous disable-status exact exclusive hold immediate kill-on-bad-exit label multi-prog
nice no-kill overcommit overlap oversubscribe preserve-env propagate pty quiet unbuffered
quit-on-interrupt resv-ports spread-job use-min-nodes verbose X H I K l k O s E Q u v
"""
SRUN_SWITCHES = frozenset(_SWITCHES.split())
"""The options of srun without a value, or with a value after `=` only; the others have one."""
_READS = "the program reads RANK, WORLD_SIZE and LOCAL_RANK instead, as torch.distributed does"
HEADS = {
    "horovodrun": f"hvd.init() finds no launcher of Horovod: {_READS}",
    "mpirun": f"MPI_Init finds no launcher of MPI: {_READS}; --env-style mpi adds Open MPI's",
    "srun": f"srun starts one agent on each node, which starts the workers: {_READS}",
    "ft_launcher": "heartbeats of RankMonitorClient are ignored: report steps by "
    "rallypoint.worker.progress, or print them (--progress-pattern)",
}
"""The remark for the user on what is different with any line of a launcher, by launcher; some have
none."""


class Fate(NamedTuple):
    """One option of a launcher: its number of values, what it becomes, and a remark for the user.

    `to` is the part of its row between `=` and `|`, `about` what comes after the `|`.
    """

    values: int
    to: str
    about: str


def _read(table: str) -> dict[str, Fate]:
    rows: dict[str, Fate] = {}
    for line in table.strip().splitlines():
        head, _, tail = line.partition(" =")
        to, _, about = tail.partition("|")
        *names, values = head.split()
        rows |= dict.fromkeys(names, Fate(int(values), to.strip(), about.strip()))
    return rows


OPTIONS = {launcher: _read(table) for launcher, table in _TABLES.items()}
"""The translations of options, by launcher and by the option's name."""
