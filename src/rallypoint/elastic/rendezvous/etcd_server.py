"""An etcd server of one member on this machine, for tests and for users without an etcd.

    with EtcdServer() as server:
        store = EtcdStore(server.get_client(), "/tests")

It listens on loopback and has no authentication: every user of this machine can use it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from typing import IO, Any, Self

from rallypoint.elastic.etcd.client import EtcdClient
from rallypoint.elastic.stores.store import Timeout, to_seconds
from rallypoint.elastic.utils.distributed import get_free_port, get_socket_with_port
from rallypoint.errors import InfrastructureError, ParameterError, RallypointError
from rallypoint.process.kept_program import KeptProgram

BINARY_VARIABLE = "TORCHELASTIC_ETCD_BINARY_PATH"
_HOST = "127.0.0.1"
_LOOK_S = 0.02
_SAID_BYTES = 2000
_IN_USE = "address already in use"

find_free_port = get_socket_with_port
"""Torch's name for `get_socket_with_port`: its socket reserves a port until it is closed."""


def find_etcd() -> str:
    """Return the path of the program that TORCHELASTIC_ETCD_BINARY_PATH names, else `etcd` on PATH.

    Raises ParameterError if there is none.
    """
    given = os.environ.get(BINARY_VARIABLE, "")
    found = shutil.which(given or "etcd")
    if found:
        return os.path.abspath(found)
    if given:
        raise ParameterError(f"{BINARY_VARIABLE}={given}: is not a program that can be run")
    raise ParameterError(
        "no etcd was found on PATH: install one (Debian: apt-get install etcd-server), or give the "
        f"path of the program in {BINARY_VARIABLE}"
    )


class EtcdServer:
    """An etcd of version 3 that runs on this machine, with the methods of torch's class.

    It ends with `stop`, with a `with` block, and with this process, also if that is killed. Its
    directory is removed then, unless it was given. Not for several threads at once.
    """

    def __init__(self, data_dir: str | os.PathLike[str] | None = None) -> None:
        """Make a server that is not started yet.

        Its data are kept in `data_dir` for the next start; None: they are not kept.
        """
        self._data_dir = None if data_dir is None else os.path.abspath(data_dir)
        self._program: KeptProgram | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(
        self, timeout: Timeout = 60, num_retries: int = 3, stderr: int | IO[bytes] | None = None
    ) -> None:
        """Start the server, and return when it answers.

        A port that another program took meanwhile is replaced, at most `num_retries` times, and
        only if `stderr` is None. `stderr` is a file or a descriptor for the server's messages; with
        None they are shown only if the start fails. Blocks for at most `timeout`, seconds or a
        timedelta. Raises ParameterError if there is no etcd program or the server runs already, and
        InfrastructureError if it does not start, with the server's last message if `stderr` is
        None.
        """
        if self._program is not None:
            raise ParameterError(f"this EtcdServer runs already, at {self.get_endpoint()}")
        program, ends_at = find_etcd(), time.monotonic() + to_seconds(timeout)
        for is_last in [False] * num_retries + [True]:
            said = self._try_to_start(program, ends_at, stderr)
            if said is None:
                return
            if is_last or _IN_USE not in said or time.monotonic() >= ends_at:
                last = (said.strip().splitlines() or ["it said nothing"])[-1]
                raise InfrastructureError(f"{program} did not start: {last}")

    def stop(self) -> None:
        """Stop the server. Blocks until it has ended; may be called again."""
        if self._program is not None:
            self._program.stop()
            self._program = None

    def get_host(self) -> str:
        return _HOST

    def get_port(self) -> int:
        """Return the port of the server: 0 before the first start; each start picks another one."""
        return self._port

    def get_endpoint(self) -> str:
        """Return the server's HOST:PORT, in the form of `--rdzv-endpoint`."""
        return f"{_HOST}:{self._port}"

    def get_client(self) -> EtcdClient:
        """Return a client for this server."""
        return EtcdClient(self.get_endpoint())

    def _try_to_start(
        self, program: str, ends_at: float, stderr: int | IO[bytes] | None
    ) -> str | None:
        """Start etcd on a free port and wait for an answer; return None if it came.

        Else etcd is stopped, and the text returned is the end of its messages; without any, or with
        a `stderr`, it says that etcd did not answer in time, or is empty: etcd has ended.
        """
        self._port = get_free_port()
        directory = os.path.join(tempfile.gettempdir(), f"rallypoint-etcd-{os.urandom(8).hex()}")
        own = os.memfd_create("etcd") if stderr is None else None
        output = stderr if own is None else own
        argv = _command(program, self._data_dir or f"{directory}/data", self._port)
        try:
            self._program = KeptProgram(argv, directory, output)
            try:
                if self._answers_in_time(ends_at):
                    return None
            except BaseException:
                self.stop()
                raise
            why = "" if not self._program.is_alive() else "it does not answer in time"
            self.stop()
            return (own is not None and _end_of(own)) or why
        finally:
            if own is not None:
                os.close(own)

    def _answers_in_time(self, ends_at: float) -> bool:
        assert self._program is not None
        client = self.get_client()
        while self._program.is_alive() and time.monotonic() < ends_at:
            with suppress(RallypointError):
                client.call("/v3/kv/range", {"key": "AA=="})
                return self._program.is_alive()
            time.sleep(_LOOK_S)
        return False


def _command(program: str, data_dir: str, port: int) -> list[str]:
    client, peer = f"http://{_HOST}:{port}", f"http://{_HOST}:{get_free_port()}"
    return [
        program,
        *("--data-dir", data_dir),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"default={peer}"),
        *("--heartbeat-interval", "30", "--election-timeout", "300"),  # It only elects itself.
        *("--logger", "zap", "--log-level", "error"),
    ]


def _end_of(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, _SAID_BYTES, max(size - _SAID_BYTES, 0)).decode("utf-8", "replace")


def stop_etcd(subprocess: Any, data_dir: str | None = None) -> None:
    """End an etcd process (a `Popen`) that the program started itself, and remove `data_dir`.

    Blocks until the process has ended. To stop an `EtcdServer`, call its `stop`.
    """
    if subprocess.poll() is None:
        subprocess.terminate()
        subprocess.wait()
    if data_dir is not None:
        shutil.rmtree(data_dir, ignore_errors=True)
