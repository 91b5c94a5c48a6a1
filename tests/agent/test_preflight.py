"""Whether a machine can start workers, tried on machines that lack something."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness import hanging_directory
from tests.harness.limits import until
from tests.harness.narrowed import known
from tests.harness.programs import run_program
from tests.harness.round_workers import leaves_nothing as leaves_nothing
from tests.harness.round_workers import nothing_left
from tests.harness.small_disk import mounted
from tests.harness.unprivileged import become_somebody

from rallypoint.agent.preflight import Directories, Preflight, Unfit, places
from rallypoint.core.model import Lacking
from rallypoint.process.logs.specs import DefaultLogsSpecs

UNDER = """
import asyncio, resource, sys
from rallypoint.agent.preflight import Directories, Preflight
number, most, workers, limit_s = map(int, sys.argv[1:5])
if most:
    resource.setrlimit(number, (most, most))
preflight = Preflight([Directories((path,)) for path in sys.argv[5:]], workers, limit_s=limit_s)
unfit = asyncio.run(preflight.run())
print("fit" if unfit is None else f"{unfit.text}; {unfit.lacking.errno}; {unfit.fix}", flush=True)
"""
"""Tries under a limit, and says what came of it."""


def try_(*paths: Path | str, workers: int = 2, **rest: object) -> Unfit | None:
    """What comes of it; nothing of it is left."""
    where = [Directories((str(path),)) for path in paths]
    with nothing_left():
        return asyncio.run(Preflight(where, workers, **rest).run())  # type: ignore[arg-type]


def try_under(
    *words: object, number: int = 0, most: int = 0, workers: int = 2, before: tuple[str, ...] = ()
) -> str:
    command = [*before, sys.executable, "-c", UNDER, number, most, workers, 2, *words]
    return run_program(list(map(str, command)), check=True).stdout.strip()


def test_A10_a_machine_that_lacks_nothing_is_fit_and_nothing_is_left(tmp_path: Path) -> None:
    assert try_(tmp_path, workers=9) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", ["size=32k", "size=1m,nr_inodes=1"])
def test_A10_a_full_disk_is_named_with_what_to_do(tmp_path: Path, options: str) -> None:
    with mounted(tmp_path / "disk", options) as disk:
        found = try_(tmp_path, disk)
        assert list(disk.iterdir()) == []
    assert found == Unfit(
        f"can't write to {disk}: No space left on device",
        Lacking(f"write to {disk}", errno.ENOSPC),
        "free space there, or set TMPDIR or --log-dir",
    )


def test_A10_a_read_only_disk_is_the_machine_s_fault(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "ro") as disk:
        found = try_(disk)
    assert found is not None
    assert found.lacking == Lacking(f"write to {disk}", errno.EROFS)


def test_A10_a_directory_that_is_none_is_an_option_s_fault(tmp_path: Path) -> None:
    found = known(try_(tmp_path / "none"))
    assert found.text == f"can't write to {tmp_path / 'none'}: No such file or directory"
    assert found.lacking is None
    assert "--log-dir" in found.fix


async def test_A10_the_first_directory_that_can_be_written_is_enough(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none")
    for where, is_fit in (
        (Directories((nowhere, str(tmp_path))), True),
        (Directories((nowhere, nowhere)), False),
        (Directories((nowhere,), is_given=True), True),
    ):
        assert (await Preflight([where], 1).run() is None) is is_fit


def test_A10_too_few_descriptors_are_named() -> None:
    import resource

    said = try_under(number=resource.RLIMIT_NOFILE, most=25, workers=8)
    assert said == f"can't open 40 files: Too many open files; {errno.EMFILE}; raise ulimit -n"


def test_A10_too_few_processes_for_all_workers_at_once_are_named() -> None:
    import resource

    def under(most: int) -> str:
        before = become_somebody()
        return try_under(number=resource.RLIMIT_NPROC, most=most, workers=8, before=before)

    if os.geteuid():
        pytest.skip("another user's processes can't be counted")
    assert under(20) == "fit"
    assert under(6).startswith(
        f"can't start 8 workers: Resource temporarily unavailable; {errno.EAGAIN}; raise ulimit -u"
    )
    assert under(1).startswith(f"can't fork: Resource temporarily unavailable; {errno.EAGAIN}; ")


def hang(_path: str) -> None:
    signal.pause()


async def test_A10_a_directory_that_does_not_answer_is_named_and_delays_nothing(
    tmp_path: Path,
) -> None:
    found: list[Unfit | None] = []
    trying = asyncio.ensure_future(
        Preflight([Directories((str(tmp_path),))], 2, limit_s=0.5, write=hang).run()
    )
    turns = 0
    while not trying.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 5, "heartbeats and signals are handled meanwhile"
    found.append(await trying)
    assert found[0] is not None
    assert found[0].text == f"can't write to {tmp_path}: no answer within 0.5 s"
    assert found[0].lacking == Lacking(f"write to {tmp_path}", errno.ETIMEDOUT)


def test_A10_a_file_system_that_not_even_sigkill_gets_past_delays_no_end(tmp_path: Path) -> None:
    directory = tmp_path / "server"
    before = hanging_directory.prefix(directory)
    with subprocess.Popen(
        [*before, sys.executable, "-c", UNDER, "0", "0", "2", "1", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = process.stdout.readline()
        assert hanging_directory.was_asked(directory)
        process.stdin.close()
        assert process.wait() == 0
    assert said.startswith(f"can't write to {directory}: no answer within 1 s; {errno.ETIMEDOUT}")


async def test_A10_a_leaving_node_does_not_wait_for_its_try(tmp_path: Path) -> None:
    preflight = Preflight([Directories((str(tmp_path),))], 2, write=hang)
    trying = asyncio.ensure_future(preflight.run())
    await until(lambda: preflight.is_left)
    trying.cancel()
    await asyncio.wait((trying,))
    assert trying.cancelled()
    assert not preflight.is_left


def kill(_path: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(_path: str) -> None:
    raise ValueError("a bug")


def test_A10_a_try_that_is_killed_is_no_success_and_a_bug_holds_no_machine_back(
    tmp_path: Path,
) -> None:
    killed = known(try_(tmp_path, write=kill))
    assert killed.text.endswith("the process of this test was killed by SIGKILL")
    assert killed.lacking is not None
    assert try_(tmp_path, write=fail) is None


def test_A10_the_directories_of_the_workers_are_tried(tmp_path: Path) -> None:
    logs, scratch, temp = tmp_path / "logs", str(tmp_path / "scratch"), str(tmp_path / "temp")
    given, none = DefaultLogsSpecs(str(logs)), DefaultLogsSpecs(os.devnull)
    for specs in (given, none):
        specs.open("job")
    assert given.directory is not None
    usual = [Directories((temp,), is_given=True), Directories((scratch,))]
    assert places(given, scratch, temp) == [*usual, Directories((given.directory,))]
    assert places(none, scratch, temp) == usual, "there are no files"
    later = places(DefaultLogsSpecs(), "", temp)
    assert later == [Directories((temp,), is_given=True), Directories((temp, "/tmp", "/var/tmp"))]
