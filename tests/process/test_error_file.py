"""What `record` leaves in the error file, and what it must leave alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from rallypoint.core.worker_exits import WorkerExit
from rallypoint.elastic.multiprocessing.errors import ProcessFailure
from rallypoint.errors import ChildFailedError, FailedProcess
from rallypoint.process.failures import describe_failure, parse_error_file, read_error_file
from rallypoint.worker import ErrorHandler, get_error_handler, record


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "0" / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


class Quiet(ErrorHandler):
    """Without faulthandler, which belongs to pytest here."""

    def initialize(self) -> None:
        pass


def fail(error: BaseException) -> None:
    raise error


def record_failure(text: str) -> None:
    """A recorded function raises a `ValueError` of this text, which is raised here, too."""
    with pytest.raises(ValueError, match=text):
        record(fail, Quiet())(ValueError(text))


def record_failed_child(
    path: Path, code: int, handler: ErrorHandler | None = None
) -> FailedProcess:
    """A recorded launcher raises what it does when a child has ended so, which is raised here."""
    error = ChildFailedError("trainer", {3: ProcessFailure(1, 22, code, str(path))})
    with pytest.raises(ChildFailedError) as caught:
        record(fail, handler or Quiet())(error)
    return caught.value.get_first_failure()[1]


def told(file: Path) -> dict[str, object]:
    message = json.loads(file.read_text())["message"]
    assert isinstance(message, dict)
    return message


def test_P7_an_exception_is_written_in_torchs_form_and_raised(file: Path) -> None:
    with pytest.raises(ValueError, match="bad"):
        record(fail, Quiet())(ValueError("bad\nlöss"))
    message = told(file)
    assert message.keys() == {"message", "extraInfo"}
    assert message["message"] == "ValueError: bad\nlöss"
    extra = message["extraInfo"]
    assert isinstance(extra, dict)
    assert extra.keys() == {"py_callstack", "timestamp"}
    assert extra["timestamp"].isdecimal()
    assert extra["py_callstack"].startswith("Traceback (most recent call last):\n")
    assert "in fail\n" in extra["py_callstack"]
    assert "worker/error_file.py" not in extra["py_callstack"]
    assert os.listdir(file.parent) == ["error.json"]
    content = read_error_file(str(file))
    assert describe_failure(WorkerExit(1, None), error_file=content).message == "ValueError: bad"
    known = parse_error_file(content)
    assert known is not None
    assert known.raised_at == float(extra["timestamp"])


@pytest.mark.parametrize(
    "error", [SystemExit(), SystemExit(3), SystemExit("text"), KeyboardInterrupt()], ids=repr
)
def test_P7_ends_that_are_no_defect_are_passed_on_and_not_written(
    file: Path, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        record(fail, Quiet())(error)
    assert caught.value is error
    assert not file.exists()


def test_P7_exit_with_code_0_is_a_return(file: Path) -> None:
    assert record(fail, Quiet())(SystemExit(0)) is None
    assert not file.exists()


def test_P7_the_first_failure_is_kept(file: Path) -> None:
    for text in ("first", "second"):
        record_failure(text)
    assert told(file)["message"] == "ValueError: first"
    assert file.stat().st_mode & 0o222 == 0
    assert os.listdir(file.parent) == ["error.json"]


def test_P7_a_file_that_somebody_prepared_is_replaced(file: Path) -> None:
    file.parent.mkdir()
    file.touch()
    record_failure("x")
    assert told(file)["message"] == "ValueError: x"


def test_P7_links_are_not_followed(file: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    file.parent.mkdir()
    file.symlink_to(precious)
    record_failure("x")
    assert precious.read_text() == "kept"
    assert not file.is_symlink()
    assert told(file)["message"] == "ValueError: x"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("place", ["", "/dev/null/x", "\0"], ids=["nowhere", "no folder", "nul"])
def test_P7_what_goes_wrong_in_telling_never_hides_the_exception(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The system forbids a NUL in a variable, so the handler is asked to use it otherwise.
    monkeypatch.setattr(os, "environ", {"TORCHELASTIC_ERROR_FILE": place})
    with pytest.raises(Unspeakable):
        record(fail, Quiet())(Unspeakable())


def test_P7_an_exception_without_a_text_is_told(file: Path) -> None:
    with pytest.raises(Unspeakable):
        record(fail, Quiet())(Unspeakable())
    assert str(told(file)["message"]).startswith("Unspeakable: ")


def test_P7_however_long_the_text_an_agent_reads_it(file: Path) -> None:
    with pytest.raises(ValueError, match="\U0001f600"):
        record(fail, Quiet())(ValueError("\U0001f600" * 1_000_000))
    assert read_error_file(str(file)) is not None


def test_P7_the_file_of_a_failed_child_is_copied_with_its_exit_code(
    file: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "child.json"
    theirs.write_text('{"message": {"message": "M", "extraInfo": {"timestamp": "5"}}}')
    record_failed_child(theirs, 7)
    expected = {"message": "M", "extraInfo": {"timestamp": "5"}, "errorCode": 7}
    assert told(file) == expected


def test_P7_a_child_that_inherited_our_file_has_its_exit_code_put_into_it(file: Path) -> None:
    record_failure("x")
    record_failed_child(file, 4)
    assert told(file)["message"] == "ValueError: x"
    assert told(file)["errorCode"] == 4
    assert os.listdir(file.parent) == ["error.json"]


def test_P7_the_short_form_is_copied_as_it_is(file: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "child.json"
    theirs.write_text('{"message": "text", "timestamp": 12}')
    record_failed_child(theirs, 7)
    assert json.loads(file.read_text()) == {"message": "text", "timestamp": 12}


def test_P7_a_child_without_a_file_leaves_none(file: Path, tmp_path: Path) -> None:
    record_failed_child(tmp_path / "absent", 7)
    assert not file.exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"more": 1}'])
def test_P7_a_damaged_file_of_a_child_does_no_harm(
    file: Path, tmp_path: Path, content: str
) -> None:
    theirs = tmp_path / "child.json"
    theirs.write_text(content)
    get_error_handler().dump_error_file(str(theirs), 3)
    assert not file.exists() or json.loads(file.read_text()) == json.loads(content)


def test_P7_a_handler_is_told_of_the_function_and_of_its_success() -> None:
    class Noting(Quiet):
        noted: list[object]

        def __init__(self) -> None:
            self.noted = []

        def initialize(self) -> None:
            self.noted.append("begin")

        def set_entrypoint_fn_name(self, fn_name: str | None) -> None:
            self.noted.append(fn_name)

        def record_success(self) -> None:
            self.noted.append("success")

    def train(steps: int) -> int:
        return steps

    handler = Noting()
    assert record(train, handler)(4) == 4
    assert record(partial(train, 5), handler)() == 5
    assert record(train).__name__ == "train"
    name = f"{test_P7_a_handler_is_told_of_the_function_and_of_its_success.__name__}.<locals>.train"
    assert handler.noted == [name, "begin", "success", None, "begin", "success"]


def test_P7_a_handler_may_add_to_the_message_of_a_signal(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Adding(Quiet):
        def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
            return f"{message}, see {error_file}"

    class Raising(Quiet):
        def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
            raise RuntimeError("nothing known")

    path = tmp_path / "child.json"
    path.write_text('{"message": {"message": "out of order", "extraInfo": {"timestamp": "1"}}}')
    failure = record_failed_child(path, -11, Adding())
    logged = [note.getMessage() for note in caplog.records if note.levelname == "ERROR"]
    assert logged == [f"{failure.message}, see {path}"]
    caplog.clear()
    for handler, code in ((Adding(), 3), (Quiet(), -11), (Raising(), -11)):
        record_failed_child(path, code, handler)
    assert [note for note in caplog.records if note.levelname == "ERROR"] == []


def test_P7_a_recorded_program_dumps_its_stacks_at_a_fatal_signal() -> None:
    program = (
        "import os, signal\nfrom rallypoint.worker import record\n@record\ndef main():\n"
        "    os.kill(os.getpid(), signal.SIGSEGV)\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert b"Fatal Python error: Segmentation fault" in done.stderr


def test_a_worker_imports_the_standard_library_only() -> None:
    program = "import sys, rallypoint.worker\nrallypoint.worker.record\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    modules = {name.partition(".")[0] for name in done.stdout.decode().split()}
    assert modules - set(sys.stdlib_module_names) - {"rallypoint", "__main__"} <= {
        name for name in modules if name.startswith(("_", "sitecustomize"))
    }
    assert "msgspec" not in modules
