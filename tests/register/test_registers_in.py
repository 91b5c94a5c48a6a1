"""Finding the jobs whose registers lie in a directory."""

from __future__ import annotations

from pathlib import Path

from tests.harness.engines import write_record

from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.directory.store import DirectoryEngine
from rallypoint.register.engines import Use

RUN_IDS = ["a_job", "job-1", "exp/7: lr=0.1", "--", "ä" * 60, "x" * 200]


def register(directory: Path, run_id: str, token: bytes | None = None) -> DirectoryBackend:
    return DirectoryBackend(str(directory), run_id, token)


def engine(directory: Path) -> DirectoryEngine:
    return DirectoryEngine(str(directory), {}, Use())


def test_L1_jobs_are_found_by_their_registers_whatever_their_names_and_tokens(
    tmp_path: Path,
) -> None:
    registers = engine(tmp_path)
    assert registers.changed() == []
    for run_id in RUN_IDS:
        backend = register(tmp_path, run_id, b"secret of " + run_id.encode())
        write_record(backend, run_id, 0)
        registers.changed()
        write_record(backend, run_id, 1)
        assert registers.changed() == [run_id]
    assert sorted(engine(tmp_path).changed()) == sorted(RUN_IDS)


def test_L1_only_registers_that_have_changed_are_read_again(tmp_path: Path) -> None:
    registers = engine(tmp_path)
    backends = {run_id: register(tmp_path, run_id) for run_id in RUN_IDS}
    for run_id, backend in backends.items():
        write_record(backend, run_id, 0)
        write_record(backend, run_id, 1)
    assert len(registers.changed()) == len(RUN_IDS)
    assert registers.changed() == []
    write_record(backends["job-1"], "job-1", 2)
    assert registers.changed() == ["job-1"]


def test_L1_what_is_no_register_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_text("weights")
    (tmp_path / f"rallypoint-job-{'0' * 32}").mkdir()
    (tmp_path / f"rallypoint-job-{'1' * 32}").write_text("no directory")
    broken = tmp_path / f"rallypoint-job-{'2' * 32}"
    broken.mkdir()
    (broken / "first").write_bytes(b"rallypoint")
    (tmp_path / f"gone-0123456789abcdef-rallypoint-job-{'3' * 32}").mkdir()
    write_record(register(tmp_path, "job"), "job", 0)
    assert engine(tmp_path).changed() == ["job"]
    assert engine(tmp_path / "missing").changed() == []
