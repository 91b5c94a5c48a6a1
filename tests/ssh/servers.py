"""Hosts that ssh reaches: a real sshd for each, on an address and a port of loopback, with keys and
configuration of their own.

    with Hosts(tmp_path, "node-a", "node-b") as hosts:
        done = hosts.launch("--hosts", "node-a,node-b", "train.py")

The names are aliases in a configuration of ssh that `launch` is given. Their users' home, and the
directory of a job, is `hosts.work`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.harness.cluster import wait_until
from tests.harness.one_agent import free_port
from tests.harness.proc import children_of, command_line, descendants
from tests.harness.programs import run_program

_LIMIT_S = 60.0
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
BIN = Path(sys.executable).parent
_SERVER = """\
ListenAddress {address}
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PrintMotd no
MaxStartups 100
SetEnv HOME={work} PATH={path} OMP_NUM_THREADS=1
"""
_CLIENT = """\
Host *
  User {user}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
  ConnectTimeout 5
{hosts}
"""
_ALIAS = """\
Host {name}
  HostName {address}
  Port {port}
"""


def why_impossible() -> str:
    """Why there can be no sshd on this machine; empty where there can."""
    for tool in ("sshd", "ssh", "ssh-keygen"):
        if shutil.which(tool, path=_PATH) is None:
            return f"there is no `{tool}`: tools/install_sshd.sh installs it, as root"
    if not os.path.isdir("/run/sshd") and os.geteuid() == 0:
        with suppress(OSError):
            os.mkdir("/run/sshd", 0o755)
        if not os.path.isdir("/run/sshd"):
            return "there is no /run/sshd, which an sshd of root needs, and it can't be made"
    if not os.path.isdir("/proc/self"):
        return "there is no /proc, by which a test finds the processes of a link"
    return ""


class Hosts:
    """They listen when this has been entered. `refusing` is a name on which nothing listens."""

    def __init__(self, folder: Path, *names: str, refusing: Sequence[str] = ()) -> None:
        self.work = folder / "work"
        self._folder = folder / "ssh"
        self._names, self._refusing = names, refusing
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def ssh(self) -> str:
        """For `--ssh`."""
        return f"ssh -F {self._folder}/config"

    @property
    def env(self) -> dict[str, str]:
        """Of the person at the terminal."""
        return {"PATH": f"{BIN}:{_PATH}", "HOME": str(self.work), "LANG": "C.UTF-8"}

    def command(self, *words: str) -> list[str]:
        """`rallypoint launch` with these."""
        return [str(BIN / "rallypoint"), "launch", "--ssh", self.ssh, *words]

    def start(
        self, *words: str, env: Mapping[str, str] | None = None, log: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """A launch that runs; what it writes is in `log`."""
        with (log or self.work / "log").open("wb") as file:
            started = subprocess.Popen(
                self.command(*words),
                cwd=self.work,
                env=self.env | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._started.append(started)
        return started

    def launch(
        self, *words: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A launch, to its end."""
        return self.run(self.command(*words), env)

    def run(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Any command of the person, to its end."""
        return run_program(
            argv, cwd=self.work, env=self.env | dict(env or {}), stdin=subprocess.DEVNULL
        )

    @property
    def log(self) -> str:
        """What the launch that `start` started has written so far."""
        return (self.work / "log").read_text(errors="replace")

    def below(self, name: str) -> list[int]:
        """The processes of that host, those of its sshd included."""
        return descendants(self._servers[name].pid)

    def agent(self, name: str) -> int:
        """The agent that runs there."""
        found = [pid for pid in self.below(name) if f"--node-id={name}" in command_line(pid)]
        (agent, *_) = found
        return agent

    def cut(self, name: str) -> None:
        """Break the links to that host: its side of the connections is gone."""
        for pid in children_of(self._servers[name].pid):
            os.kill(pid, signal.SIGKILL)
        for pid in self.below(name):
            if command_line(pid).startswith("sshd"):
                os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Hosts:
        self.work.mkdir(exist_ok=True)
        self._folder.mkdir()
        for name in ("host_key", "user_key"):
            words = ("-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name))
            subprocess.run(["ssh-keygen", *words], check=True)
        self._configure()
        for name in self._names:
            options = ("-D", "-e", "-f", str(self._folder / f"{name}.conf"))
            with (self._folder / f"{name}.log").open("wb") as log:
                self._servers[name] = subprocess.Popen(
                    [str(shutil.which("sshd", path=_PATH)), *options], stdin=-3, stderr=log
                )
        for name in self._names:
            path = self._folder / f"{name}.log"
            wait_until(lambda path=path: "listening" in path.read_text(), f"{name} to listen")  # type: ignore[misc]
        return self

    def __exit__(self, *_: object) -> None:
        self.clean()
        for server in self._servers.values():
            server.kill()
            server.wait()

    def empty(self) -> None:
        """The home and directory of all."""
        shutil.rmtree(self.work)
        self.work.mkdir()

    def clean(self) -> None:
        """Nothing that a test has started runs any more."""
        for started in self._started:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        for name in self._names:
            for pid in self.below(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _configure(self) -> None:
        folder, key = self._folder, (self._folder / "host_key.pub").read_text()
        aliases, known = [], []
        for number, name in enumerate((*self._names, *self._refusing), 2):
            where = {"address": f"127.0.0.{number}", "port": str(free_port())}
            aliases.append(_ALIAS.format(name=name, **where))
            known.append(f"[{where['address']}]:{where['port']} {key}")
            conf = _SERVER.format(folder=folder, work=self.work, path=f"{BIN}:{_PATH}", **where)
            (folder / f"{name}.conf").write_text(conf)
        user = pwd.getpwuid(os.geteuid()).pw_name
        text = _CLIENT.format(folder=folder, user=user, hosts="".join(aliases))
        (folder / "config").write_text(text)
        (folder / "known_hosts").write_text("".join(known))
