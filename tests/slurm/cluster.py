"""A real Slurm: slurmctld, munged and four slurmd, each node a network namespace of its own.

    with Slurm(tmp_path) as slurm:
        done = slurm.srun("-N3", "rallypoint", "run", "train.py")

Commands are given on the host `head`. What a job writes is in `slurm.work`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.fault.network import Network
from tests.harness.cluster import wait_until
from tests.harness.programs import run_program

HEAD, NODES = "head", ("n1", "n2", "n3", "n4")
_LIMIT_S = 60.0
_CONF = """\
ClusterName=test
SlurmctldHost=head({head})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
SlurmdTimeout=5
KillWait=5
MinJobAge=300
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
{nodes}
PartitionName=main Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP
"""
_NODE = "NodeName={name} NodeAddr={address} NodeHostname={name} CPUs=8 RealMemory=1000"


def why_impossible() -> str:
    """Why there is no Slurm on this machine; empty where there is one."""
    for tool in ("slurmctld", "slurmd", "munged", "srun", "sbatch"):
        if shutil.which(tool, path=_PATH) is None:
            return f"there is no `{tool}`: tools/install_slurm.sh installs it, as root"
    return ""


_PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Slurm:
    """One that is up when it has been entered."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.network = Network(HEAD, *NODES)
        self._folder = folder / "slurm"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def env(self) -> dict[str, str]:
        """Of a person on the head node."""
        home = str(self.work)
        conf = str(self._folder / "slurm.conf")
        return {"PATH": _PATH, "HOME": home, "SLURM_CONF": conf, "LANG": "C.UTF-8"}

    def run(
        self, *words: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command on the head node, to its end."""
        return run_program(
            [*self._inside(HEAD), *words], cwd=self.work, env=self.env | dict(env or {})
        )

    def srun(
        self, *words: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self.run("srun", *words, env=env)

    def sbatch(self, *words: str, script: str, env: Mapping[str, str] | None = None) -> str:
        """The number of the job."""
        (self.work / "job.sbatch").write_text(script)
        done = self.run("sbatch", "--parsable", *words, "job.sbatch", env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """As `COMPLETED 0:0`: the state and the exit code of the batch script."""
        fields = dict(word.split("=", 1) for word in self.described(job).split() if "=" in word)
        return f"{fields.get('JobState', '')} {fields.get('ExitCode', '')}"

    def described(self, job: str) -> str:
        """All that Slurm says of it, on a line."""
        return self.run("scontrol", "--oneliner", "show", "job", job).stdout

    def wait_state(self, job: str, *states: str, limit_s: float = 90.0) -> str:
        """Until it begins with one of these; the whole state."""
        found: list[str] = []

        def is_there() -> bool:
            found[:] = [self.state(job)]
            return found[0].split()[:1] != [] and found[0].split()[0] in states

        wait_until(is_there, f"job {job} to be {states}", limit_s)
        return found[0]

    def start_soon(self, job: str) -> None:
        """Slurm lets one that was requeued wait for two minutes, of which a few seconds do: the
        credential of its first run must be older than the second one's."""
        done = self.run("scontrol", "update", f"jobid={job}", "starttime=now+8")
        assert done.returncode == 0, done.stderr

    def lose(self, node: str) -> None:
        """The machine dies: nothing of what runs there says a word more."""
        for pid in self.network.processes(node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start_node(self, node: str) -> None:
        """It is back, with nothing of what ran there."""
        self._daemons[node].wait()
        self._start_node(node)
        wait_until(self._is_up, "four idle nodes", 90)

    def tasks(self) -> list[int]:
        """What runs on the nodes besides Slurm's daemons."""
        own = {daemon.pid for daemon in self._daemons.values()}
        return [pid for pid in self.network.processes(*NODES) if pid not in own]

    def __enter__(self) -> Slurm:
        self.work.mkdir()
        (self._folder / "state").mkdir(parents=True)
        self.network.__enter__()
        try:
            self._configure()
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _configure(self) -> None:
        lines = [_NODE.format(name=name, address=self.network.address(name)) for name in NODES]
        text = _CONF.format(
            head=self.network.address(HEAD),
            folder=self._folder,
            nodes="\n".join(lines),
        )
        (self._folder / "slurm.conf").write_text(text)
        # A namespace of `ip netns` has a /sys of its own, without control groups.
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._folder.chmod(0o755)

    def _start(self) -> None:
        folder = self._folder
        files = {"key": "key", "socket": "socket", "pid": "pid", "log": "log", "seed": "seed"}
        words = [f"--{name}-file={folder}/munge.{end}" for name, end in files.items()]
        words[1] = f"--socket={folder}/munge.socket"
        self._daemon("munged", HEAD, "munged", "--foreground", "--force", *words)
        wait_until((folder / "munge.socket").exists, "munged to listen")
        self._daemon("slurmctld", HEAD, "slurmctld", "-D", "-c")
        for node in NODES:
            (folder / f"spool.{node}").mkdir()
            self._start_node(node)
        wait_until(self._is_up, "four idle nodes")

    def _start_node(self, node: str) -> None:
        start = f"mount -t tmpfs none /sys/fs/cgroup && exec slurmd -D -N {node}"
        self._daemon(node, node, "sh", "-c", start)

    def _is_up(self) -> bool:
        for name, daemon in self._daemons.items():
            assert daemon.poll() is None, (self._folder / f"{name}.log").read_text()
        return self.node_states() == dict.fromkeys(NODES, "idle")

    def node_states(self) -> dict[str, str]:
        """As `idle`, `down` or `down*`, by name."""
        done = self.run("sinfo", "--noheader", "--Node", "--format=%N %T")
        return dict(line.split(None, 1) for line in done.stdout.splitlines())

    def _inside(self, host: str) -> tuple[str, ...]:
        """With a host name of its own: Slurm tells a waiting srun by it that a node is down."""
        name = 'hostname "$0" && exec "$@"'
        return (*self.network.inside(host), "unshare", "--uts", "sh", "-c", name, host)

    def _daemon(self, name: str, host: str, *words: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._daemons[name] = subprocess.Popen(
                [*self._inside(host), *words],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _stop(self) -> None:
        for daemon in self._daemons.values():
            daemon.kill()
        self.network.remove()
        for daemon in self._daemons.values():
            daemon.wait()
