"""Small names of torch's launcher do what torch's do."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from tests.compat.recordings import Recordings
from tests.harness.limits import patience
from tests.harness.programs import said_by

from rallypoint.elastic.agent.server.health_check_server import create_healthcheck_server
from rallypoint.elastic.control_plane import TORCH_WORKER_SERVER_SOCKET, worker_main
from rallypoint.elastic.launcher import LaunchConfig, elastic_launch
from rallypoint.elastic.multiprocessing.subprocess_handler import get_subprocess_handler
from rallypoint.elastic.multiprocessing.tail_log import tail_logfile
from rallypoint.elastic.rendezvous.etcd_server import find_free_port, stop_etcd
from rallypoint.elastic.rendezvous.etcd_store import cas_delay
from rallypoint.elastic.timer.debug_info_logging import log_debug_info_for_expired_timers
from rallypoint.elastic.utils.data import ElasticDistributedSampler
from rallypoint.errors import ParameterError

LIMIT_S = patience(30.0)
Find = Callable[[str], Any]


def of_torch(module: str) -> Any:
    return import_module(f"torch.distributed.{module}")


def of_ours(module: str) -> Any:
    return import_module(f"rallypoint.elastic.{module.removeprefix('elastic.')}")


def outcome(call: Callable[[], object]) -> object:
    """What it returns, or what a program would catch."""
    try:
        return call()
    except ValueError:
        return "ValueError"


def cycles(find: Find) -> object:
    """What `CyclingIterator` yields, and which epochs it asks for."""
    cls, asked = find("elastic.utils.data").CyclingIterator, []

    def epoch(number: int) -> Iterator[int]:
        asked.append(number)
        return iter([] if number == 1 else [number * 10, number * 10 + 1])

    made = [list(cls(n, epoch, start)) for n, start in ((3, 0), (3, 1), (3, 2), (0, 0), (1, 4))]
    return [made, asked]


def samples(find: Find) -> object:
    """The indices of each rank."""
    cls, found = find("elastic.utils.data").ElasticDistributedSampler, []
    for size, ranks, start in ((10, 3, 0), (10, 3, 4), (9, 2, 8), (64, 4, 1)):
        for rank in range(ranks):
            sampler = cls(range(size), ranks, rank, start)
            found.append([len(sampler), list(sampler)])
            sampler.set_epoch(5)
            found.append([sampler.num_samples, sampler.total_size, list(sampler)])
    return found


def refused_samples(find: Find) -> object:
    """Errors for a rank or a start that is out of range, and without a process group."""
    cls = find("elastic.utils.data").ElasticDistributedSampler
    given = ((range(10), 2, 0, 10), (range(10), 2, 2, 0), (range(10), 2, -1, 0), (range(10),))
    return [outcome(partial(cls, *words)) for words in given]


def states(find: Find) -> object:
    """Of processes, and of letters."""
    module = find("elastic.utils.process_state")
    letters = ("D", "D+", "S", "d", "", None)
    return [
        module.read_proc_state(os.getpid()),
        [module.read_proc_state(pid) for pid in (-1, 1 << 30)],
        [module.is_uninterruptible_state(each) for each in letters],
    ]


def method_names(find: Find) -> object:
    """As the functions here are called."""
    name = find("elastic.rendezvous.dynamic_rendezvous").get_method_name

    def inner(*depth: int) -> object:
        return name(*depth)

    return [inner(), inner(0), inner(1), inner(2), inner(10_000)]


def levels(find: Find) -> object:
    """Of loggers, by the variable LOGLEVEL."""
    get, found = find("elastic.utils.logging").get_logger, []
    with pytest.MonkeyPatch.context() as patch:
        for text in (None, "DEBUG", "CRITICAL", "much"):
            if text is None:
                patch.delenv("LOGLEVEL", raising=False)
            else:
                patch.setenv("LOGLEVEL", text)
            found.append(outcome(lambda: get("further.names").level))
        patch.setenv("LOGLEVEL", "INFO")
        found.append(get().name == __name__)
    logging.getLogger(__name__).setLevel(logging.NOTSET)
    return [found, find("elastic.utils.log_level").get_log_level()]


def streams(find: Find) -> object:
    """Whether a block is redirected, by what a stream's file is called."""
    module = find("elastic.multiprocessing.api")
    asked: list[str] = []
    with module.get_std_cm("", asked.append):
        pass
    module.get_std_cm("a file", asked.append)
    return asked


def commands(find: Find) -> object:
    """What workers run, by a command line of `torch.distributed.launch`."""
    launch, run, found = find("launch"), find("run"), []
    lines = (["a.py", "x"], ["--use-env", "a.py"], ["--use_env", "a.py", "--use-env"])
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.chdir(folder)
        Path("a.py").touch()
        for words in (*lines, ["a.py", "--use-env"], ["-m", "json", "y"]):
            args = launch.parse_args(words)
            _, _, arguments = run.config_from_args(args)
            found.append([args.use_env, run.get_use_env(args), arguments])
    without = launch.parse_args(["--no-python", "program"])
    found.append([outcome(lambda: launch.launch(without))])
    found.append([run.get_use_env(run.parse_args(["a.py"])), run.get_use_env(argparse.Namespace())])
    return found


def endpoints(find: Find) -> object:
    """Where the nodes of several command lines meet."""
    run = find("run")
    fixed = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "--master-port", "7"]
    by_c10d = ["--rdzv-backend", "c10d"]
    lines = ([*by_c10d, "--rdzv-endpoint", "h:1", "x.py"], [*fixed, "x.py"], [*by_c10d, "x.py"])
    return [run.get_rdzv_endpoint(run.parse_args(line)) for line in lines]


SCENARIOS = (cycles, samples, refused_samples, states, method_names, levels, streams, commands)


@pytest.mark.parametrize("scenario", [*SCENARIOS, endpoints], ids=lambda each: each.__name__)
def test_a_program_gets_from_ours_what_it_gets_from_torchs(
    scenario: Callable[[Find], object], torch_said: Recordings
) -> None:
    theirs = torch_said("further_names", scenario.__name__, lambda: scenario(of_torch))
    assert json.loads(json.dumps(scenario(of_ours))) == theirs


@pytest.mark.parametrize(("words", "extra"), [((), ["--local-rank={}"]), (("--use-env",), [])])
def test_the_older_command_tells_each_worker_its_local_rank(
    words: tuple[str, ...], extra: list[str], tmp_path: Path
) -> None:
    script = "import os, sys\nprint(*sys.argv[1:], os.environ['LOCAL_RANK'])\n"
    (tmp_path / "train.py").write_text(script)
    command = ["-m", "rallypoint.elastic.launch", "--nproc-per-node=2", *words, "train.py", "more"]
    said = said_by([sys.executable, *command], cwd=tmp_path)
    told = [
        " ".join([*(each.format(rank) for each in extra), "more", str(rank)]) for rank in (0, 1)
    ]
    assert sorted(said.splitlines()) == told


def test_a_loader_of_torch_takes_the_sampler() -> None:
    from torch.utils.data import DataLoader

    sampler: Any = ElasticDistributedSampler(range(8), 2, 1, start_index=2)
    found = [int(each) for batch in DataLoader(range(8), 2, sampler=sampler) for each in batch]
    assert found == list(sampler)
    assert len(found) == 3


def test_a_program_waits_for_another_one_and_reads_what_it_wrote(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    script = "echo $KEPT $MORE; echo no >&2; exit 3"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEPT", "kept")
        handler = get_subprocess_handler(
            "sh", ("-c", script), {"MORE": "more"}, str(out), str(err), 2
        )
    assert handler.proc.wait(LIMIT_S) == 3
    assert (out.read_text(), err.read_text()) == ("kept more\n", "no\n")
    assert handler.local_rank_id == 2
    handler.close()
    handler.close()


@pytest.mark.parametrize("number", [None, signal.SIGKILL])
def test_closing_a_process_ends_what_it_started_too(
    number: signal.Signals | None, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDWR), "rb", 0) as reader:
        script = "sleep 300 & echo begun; wait"
        handler = get_subprocess_handler("sh", ("-c", script), {}, str(pipe), None, 0)
        assert reader.read(6) == b"begun\n"
        own_end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    handler.close(number)
    assert handler.proc.returncode == -(number or signal.SIGTERM)
    with os.fdopen(own_end, "rb", 0) as ended:
        assert select([ended], [], [], LIMIT_S)[0], "ends when nobody can write any more"
        assert ended.read() == b""


def test_a_program_that_is_missing_and_a_binding_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        get_subprocess_handler("no-such-program", (), {}, None, None, 0)
    numa: Any = object()
    with pytest.raises(ParameterError, match="use start_processes"):
        get_subprocess_handler("true", (), {}, None, None, 0, numa)


def test_the_lines_of_a_file_are_passed_on_until_it_is_finished(tmp_path: Path) -> None:
    file, out, finished = tmp_path / "log", StringIO(), threading.Event()
    follows = threading.Thread(
        target=tail_logfile,
        args=("[0]: ", str(file), out, finished, 0.01, lambda line: line != "drop\n"),
    )
    follows.start()
    file.write_text("one\ndrop\n")
    with file.open("a") as more:
        more.write("two")
    finished.set()
    follows.join(LIMIT_S)
    assert out.getvalue() == "[0]: one\n[0]: two\n"


def asked(port: int) -> int:
    """The status of a health check."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=LIMIT_S) as answer:
            status: int = answer.status
            return status
    except HTTPError as error:
        with error:
            return error.code


def test_a_health_check_is_answered_by_the_last_progress() -> None:
    progress = [int(time.time())]
    server = create_healthcheck_server(lambda: progress[0], 0, 60)
    server.start()
    server.start()
    try:
        port = server.port
        assert asked(port) == 200
        progress[0] -= 3600
        assert asked(port) == 503
    finally:
        server.stop()
        server.stop()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), 1):
        pass


def test_a_launch_stops_the_server_of_health_checks_that_it_was_given() -> None:
    server = create_healthcheck_server(lambda: int(time.time()), 0, 60)
    server.start()
    port = server.port
    elastic_launch(LaunchConfig(1, 1, 1), sys.executable, server)("-c", "")
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), 1):
        pass


def test_what_the_main_function_of_a_worker_raises_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.delenv(TORCH_WORKER_SERVER_SOCKET, raising=False)

    @worker_main()
    def fine() -> int:
        return 7

    @worker_main()
    def bad() -> None:
        raise KeyError("loss")

    assert fine() == 7
    assert not (tmp_path / "error.json").exists()
    with pytest.raises(KeyError):
        bad()
    told = json.loads((tmp_path / "error.json").read_text())
    assert told["message"]["message"] == "KeyError: 'loss'"


def test_torchs_server_answers_where_its_socket_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "socket"
    monkeypatch.setenv(TORCH_WORKER_SERVER_SOCKET, str(path))
    with worker_main(), socket.socket(socket.AF_UNIX) as asker:
        asker.connect(str(path))
        asker.sendall(b"GET /handler/ HTTP/1.0\r\n\r\n")
        assert asker.recv(100).startswith(b"HTTP/1")


def test_a_program_ends_an_etcd_that_it_has_started(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    process = get_subprocess_handler("sleep", (1000,), {}, None, None, 0).proc
    stop_etcd(process, str(data))
    assert process.returncode == -signal.SIGTERM
    assert not data.exists()
    stop_etcd(process)
    with find_free_port() as kept, socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", kept.getsockname()[1]))


def test_a_compare_and_swap_is_tried_again_soon() -> None:
    began_at = time.monotonic()
    cas_delay()
    assert time.monotonic() - began_at < LIMIT_S


def test_expired_timers_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_debug_info_for_expired_timers("a job", {})
        log_debug_info_for_expired_timers("a job", {7: ["step", "save"]})
    assert [record.getMessage() for record in caplog.records] == [
        "timers of process 7 of job 'a job' have expired: 'step', 'save'"
    ]
