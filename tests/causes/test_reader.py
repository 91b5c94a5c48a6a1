"""The reader of tracebacks, and which of them counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.causes.outputs_read import words

from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process.causes.evidence import Evidence, evidence_in
from rallypoint.process.causes.handlers import exits_after, is_handled, is_within_with, parsed
from rallypoint.process.causes.program import Program
from rallypoint.process.causes.rows import rows_of
from rallypoint.process.causes.told import detail_is_traceback, traceback_of
from rallypoint.process.failures import describe_failure, program_of
from rallypoint.process.relay.remembered import StreamPiece

HEADER = "Traceback (most recent call last):\n"
PLAIN = HEADER + '  File "train.py", line 9, in <module>\n    main()\nValueError: bad loss'
CAUSE = HEADER + '  File "train.py", line 3, in load\n    read()\nKeyError: 1'
DIRECT = "\n\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
IGNORED = f"Exception ignored in: <function f at 0x1>\n{CAUSE}"
GROUP = (
    "  + Exception Group Traceback (most recent call last):\n"
    '  |   File "a.py", line 1, in <module>\n'
    "  | ExceptionGroup: two (1 sub-exception)\n"
    "  +-+---------------- 1 ----------------\n"
    "    | Traceback (most recent call last):\n"
    '    |   File "a.py", line 2, in f\n'
    "    | ValueError: inner\n"
    "    +------------------------------------"
)
LOADER = (
    f'{HEADER}  File "train.py", line 9, in <module>\n    raise exception\n'
    "ValueError: Caught ValueError in DataLoader worker process 0.\n"
    "Original Traceback (most recent call last):\n"
    '  File "worker.py", line 3, in fetch\n    read()\n'
    "ValueError: bad sample"
)
LEAKED = (
    "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: "
    "resource_tracker: There appear to be 4 leaked objects\n  warnings.warn('leaked')\n"
)
EXIT_1, EXIT_3 = WorkerExit(1, None), WorkerExit(3, None)


def ranked(text: str) -> str:
    return "\n".join(f"[rank0]: {line}" for line in text.splitlines())


def own_program(source: str | None) -> Program:
    """The program that the frames name; None: it can't be read."""
    return Program(lambda _: source, frozenset(["train.py", "a.py"] if source else []))


def read(text: str, exit_: WorkerExit = EXIT_1, source: str | None = None) -> Evidence:
    return evidence_in(text.splitlines(), exit_, own_program(source))


@pytest.mark.parametrize(
    ("text", "found", "exception"),
    [
        (PLAIN, PLAIN, "ValueError: bad loss"),
        (f"a warning\nanother\n{PLAIN}\n", PLAIN, "ValueError: bad loss"),
        (f"step 1\n{CAUSE}{DIRECT}{PLAIN}", f"{CAUSE}{DIRECT}{PLAIN}", "ValueError: bad loss"),
        (f"{CAUSE}{DURING}{PLAIN}", f"{CAUSE}{DURING}{PLAIN}", "ValueError: bad loss"),
        (f"{CAUSE}\nretrying\n\n{PLAIN}", PLAIN, "ValueError: bad loss"),
        (f"{PLAIN}\nsaved", f"{PLAIN}\nsaved", "ValueError: bad loss\nsaved"),
        (f"{PLAIN}\n{IGNORED}", PLAIN, "ValueError: bad loss"),
        (f"{PLAIN}\n{IGNORED}{DIRECT}{CAUSE}", PLAIN, "ValueError: bad loss"),
        (f"{PLAIN}\nError in atexit._run_exitfuncs:\n{CAUSE}", PLAIN, "ValueError: bad loss"),
        (f"--- Logging error ---\n{CAUSE}\nCall stack:\n{PLAIN}", PLAIN, "ValueError: bad loss"),
        (f"a\n{ranked(PLAIN)}\nbye", PLAIN, "ValueError: bad loss"),
        (f"{ranked(CAUSE + DIRECT + PLAIN)}\n", CAUSE + DIRECT + PLAIN, "ValueError: bad loss"),
        (f"a\n{GROUP}", GROUP, "ValueError: inner"),
        (ranked(GROUP), GROUP, "ValueError: inner"),
        (f"a\n{LOADER}", LOADER, "ValueError: bad sample"),
        (f'n.py", line 1\n{PLAIN.removeprefix(HEADER)}', PLAIN.removeprefix(HEADER), "ValueError"),
        (ranked(PLAIN.removeprefix(HEADER)), PLAIN.removeprefix(HEADER), "ValueError: bad loss"),
        ('Stack:\n  File "a.py", line 3, in f\n    g()\nstopped by hand', "", ""),
        ('Current thread 0x1:\n  File "a.py", line 3 in f', "", ""),
        ("no such data set", "", ""),
        ("", "", ""),
        (IGNORED, "", ""),
    ],
)
def test_P8_the_traceback_is_told_apart_from_what_is_around_it(
    text: str, found: str, exception: str
) -> None:
    told = read(text)
    assert told.traceback == found
    assert told.error.startswith(exception)


@pytest.mark.parametrize(
    "before",
    [
        "\ufeff",
        "epoch 1 .....",
        "\r 50%|#####     | 5/10 [00:02<00:02]",
        "2026-03-01 12:00:00,123 ERROR trainer: ",
        "[rank0]: ",
        "\x1b[31m",
    ],
)
def test_A7_a_traceback_that_does_not_begin_its_line_is_found(before: str) -> None:
    told = describe_failure(EXIT_1, words=words(f"step 1\n{before}{PLAIN}\n".encode()))
    assert (told.message, told.detail) == ("ValueError: bad loss", PLAIN)


@pytest.mark.parametrize("bye", ["", "bye", "[rank0]:[W1127] process group is left\n"])
def test_A7_a_prefix_is_one_only_if_the_next_line_has_it(bye: str) -> None:
    clocks = [f"12:00:0{n}.{n}17 host-{n} | " for n in range(4)]
    lines = [clock + line for clock, line in zip(clocks, PLAIN.splitlines(), strict=True)]
    assert read("\n".join([*lines, bye])).traceback == PLAIN
    assert read(f"[rank0]: {PLAIN}\n{bye}").error.startswith("ValueError: bad loss")


ABORT = "terminate called after throwing an instance of 'Lost'\n  what():  no route\n"


def test_A7_what_a_native_program_threw_comes_before_a_traceback_that_was_handled() -> None:
    told = describe_failure(WorkerExit(None, 6), words=words(f"{PLAIN}\nok\n{ABORT}".encode()))
    assert told.message == "killed by SIGABRT: no route"
    assert not detail_is_traceback(told)
    assert traceback_of(told) == ""


@pytest.mark.parametrize(
    ("signal", "after", "message"),
    [
        (6, "terminate called without an active exception\n", ": ValueError: bad loss"),
        (6, "step 8 ok\n", ""),
        (9, "", ""),
        (11, "", ""),
    ],
)
def test_A7_of_a_signal_only_an_abort_may_follow_from_an_exception(
    signal: int, after: str, message: str
) -> None:
    said = words(f"{PLAIN}\n{after}".encode())
    told = describe_failure(WorkerExit(None, signal), words=said).message
    assert told.partition(" SIG")[2].partition(":")[2] == message.removeprefix(":")


@pytest.mark.parametrize(
    "tail",
    [
        "Exception ignored in: <function T.__del__ at 0x1>\n" + CAUSE,
        " 50%|#####     | 5/10 [00:02<00:02,  2.1it/s]\n",
        "frame #0: c10::Error::Error(c10::SourceLocation) + 0x57 (0x7f in libc10.so)\n" * 300,
        LEAKED,
        "[rank0]:[W1127 12:00:00.1 ProcessGroupNCCL.cpp:1250] Warning: it was not destroyed\n",
        "wandb: Synced 5 files\nwandb: Find logs at: ./wandb/run-1\n",
        "sys:1: RuntimeWarning: coroutine 'f' was never awaited\n",
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
    ],
)
def test_A7_what_libraries_say_at_the_end_hides_no_exception(tail: str) -> None:
    told = describe_failure(EXIT_3, words=words(f"{CAUSE}\n{tail}".encode()))
    assert told.message == "KeyError: 1"
    assert detail_is_traceback(told)


def test_A7_a_bar_that_goes_on_shows_that_the_exception_was_handled() -> None:
    bars = "".join(f"\r{n:3d}%|{n // 10 * '#':10}| {n}/100 [00:{n:02d}<00:00]" for n in range(60))
    for many in (1, 40):
        said = words(f"{CAUSE}\n{bars * many}\n".encode())
        assert describe_failure(EXIT_3, words=said).message.startswith("exit code 3")
    closed = words(f"{CAUSE}\n{bars[:38]}\n".encode())
    assert describe_failure(EXIT_3, words=closed).message == "KeyError: 1"


@pytest.mark.parametrize("part", [1000, 1 << 16])
@pytest.mark.parametrize("before", ["." * 9000, "\r".join(f" {n}%|###|" for n in range(2000))])
def test_A7_a_traceback_behind_a_long_line_is_found_however_much_follows(
    before: str, part: int
) -> None:
    data = f"step 1\n{before}{PLAIN}\n".encode() + b"sync: file 1 of 60\n" * 9000
    told = describe_failure(EXIT_1, words=words(data, part=part))
    assert (told.message, told.detail) == ("ValueError: bad loss", PLAIN)


def test_A7_tracebacks_of_exit_hooks_displace_no_exception() -> None:
    hooks = f"the upload failed\n{CAUSE}\n" * 2
    data = f"{PLAIN}\n{hooks}".encode() + b"sync: file 1 of 60\n" * 9000
    source = "\n" * 8 + "main()\n"
    told = describe_failure(EXIT_1, words=words(data), program=own_program(source))
    assert told.message == "ValueError: bad loss"


@pytest.mark.parametrize("part", [100, 4096, 1 << 22])
@pytest.mark.parametrize(
    "text",
    [
        "ValueError: bad loss\n" + "\n".join(f"param {n}: nan" for n in range(5000)),
        "ValueError: bad loss " + "y" * 3_000_000,
    ],
)
def test_A7_of_a_long_exception_the_first_words_are_shown(text: str, part: int) -> None:
    frames = PLAIN.rpartition("\n")[0]
    told = describe_failure(EXIT_1, words=words(f"step 1\n{frames}\n{text}\n".encode(), part=part))
    assert told.message.startswith("ValueError: bad loss")
    shown = told.detail.splitlines()
    assert shown[:3] == frames.splitlines()
    assert shown[3].startswith("ValueError: bad loss")
    assert len(told.detail) < 4096


def test_A7_a_long_chain_shows_the_last_exception_and_its_innermost_frames() -> None:
    frames = "".join(f'  File "m{n}.py", line {n}, in f{n}\n    f{n + 1}()\n' for n in range(2000))
    link = f"{HEADER}{frames}KeyError: 1"
    data = f"{link}{DURING}{link}{DURING}{HEADER}{frames}ValueError: bad loss\n".encode()
    told = describe_failure(EXIT_3, words=words(data))
    assert told.message == "ValueError: bad loss"
    assert "in f1999\n    f2000()\nValueError: bad loss" in told.detail
    assert "\nKeyError: 1\n" in told.detail
    assert detail_is_traceback(told)


CODE = """
try:
    main()
except {kind}:
    {then}
"""


@pytest.mark.parametrize(
    ("kind", "then", "exception", "handled"),
    [
        ("ValueError", "pass", "ValueError", True),
        ("Exception", "log()", "Diverged", True),
        ("(KeyError, ValueError) as error", "log(error)", "ValueError", True),
        ("ArithmeticError", "pass", "ZeroDivisionError", True),
        ("KeyError", "pass", "ValueError", False),
        ("KeyboardInterrupt", "pass", "Diverged", False),
        ("Exception", "pass", "KeyboardInterrupt", False),
        ("mine.Error", "pass", "Error", True),
        ("mine.Error", "pass", "ValueError", False),
        ("ValueError", "raise", "ValueError", False),
        ("Exception", "sys.exit(1)", "ValueError", False),
        ("Exception", "os._exit(1)", "ValueError", False),
    ],
)
def test_A7_the_source_tells_whether_a_program_goes_on(
    kind: str, then: str, exception: str, handled: bool
) -> None:
    assert is_handled(parsed(CODE.format(kind=kind, then=then)), 3, exception) is handled
    assert not is_handled(parsed(CODE.format(kind=kind, then=then)), 5, exception)


def test_A7_a_handler_elsewhere_handles_nothing() -> None:
    source = "def f():\n    try:\n        g()\n    except ValueError:\n        pass\n\n\nf()\n"
    assert not is_handled(parsed(source), 8, "ValueError")
    assert not is_handled(parsed("no python ("), 1, "ValueError")
    within = "with a:\n    for b in c:\n        try:\n            f()\n        except: pass\n"
    assert is_handled(parsed(within), 4, "ValueError")


@pytest.mark.parametrize("before", ["", "for b in c:\n", "match c:\n case 1:\n"])
def test_A7_a_with_statement_may_handle_an_exception(before: str) -> None:
    indent = " " * before.count("\n") * 2
    source = f"{before}{indent}with suppress(ValueError):\n{indent} f()\n"
    line = source.count("\n")
    assert is_within_with(parsed(source), line)
    assert not is_within_with(parsed(source.replace("with suppress(ValueError)", "if a")), line)


MAIN = """
def main():
    try:
        train()
    except KeyError:
        pass
    except Exception:
        log()
        {then}
main()
"""


@pytest.mark.parametrize(
    ("then", "code", "exits"),
    [
        ("sys.exit(1)", 1, True),
        ("sys.exit(2)", 1, False),
        ("sys.exit('no data')", 1, True),
        ("raise SystemExit(3)", 3, True),
        ("return 4", 4, True),
        ("return 0", 1, False),
        ("return", 1, False),
        ("raise", 1, False),
        ("log()", 1, False),
    ],
)
def test_A7_a_program_ends_by_the_handler_that_exits(then: str, code: int, exits: bool) -> None:
    source = MAIN.format(then=then)
    assert exits_after(parsed(source), 4, "ValueError", code) is exits
    assert not exits_after(parsed(source), 4, "KeyError", code)
    assert not exits_after(parsed(source), 8, "ValueError", code)
    assert not exits_after(parsed(source), 10, "ValueError", code)


def test_A7_an_uncaught_exception_is_the_cause_whatever_is_written_at_exit() -> None:
    text = f"{PLAIN}\ngood bye\nthe upload failed\n{CAUSE}\n"
    assert read(text, source="\n" * 8 + "main()\n").error.startswith("ValueError: bad loss")
    assert read(text, EXIT_3).error == "KeyError: 1"
    within = "with quiet:\n" + "    pass\n" * 7 + "    main()\n"
    assert read(text, EXIT_3, source=within).error == "KeyError: 1"
    hook = f"{PLAIN}\nreported to the server\n"
    assert read(hook, EXIT_3, source="\n" * 8 + "main()\n").error.startswith("ValueError: bad loss")
    assert read(hook, EXIT_3) == Evidence()
    handled = "try:\n" + "    pass\n" * 7 + "    main()\nexcept ValueError:\n    log()\n"
    assert read(f"{PLAIN}\ngood bye\n", source=handled) == Evidence()


@pytest.mark.parametrize(
    ("argv", "is_own"),
    [
        (("python", "-u", "/srv/train.py", "--lr", "1"), True),
        (("python3.12", "-m", "lab.train"), True),
        (("python", "/srv/lab/"), False),
        (("python", "run.py"), False),
        (("sh", "-c", "python train.py"), True),
        (("python", "-c", "import train"), True),
    ],
)
def test_A7_the_exception_of_another_program_that_was_survived_is_not_the_cause(
    argv: tuple[str, ...], is_own: bool
) -> None:
    told = describe_failure(
        EXIT_1,
        words=words(f"{PLAIN}\nthe child failed, going on\nthe disk is full\n".encode()),
        program=program_of(argv),
    )
    expected = "ValueError: bad loss" if is_own else "exit code 1; last line: the disk is full"
    assert told.message == expected


def test_A7_notebooks_and_tests_tell_their_errors_on_stdout() -> None:
    told = describe_failure(EXIT_3, words=words(b"", PLAIN.encode()))
    assert told.message == "ValueError: bad loss"
    other = describe_failure(EXIT_3, words=words(b"the disk is full\n", PLAIN.encode()))
    assert other.message == "exit code 3; last line: the disk is full"


def test_rows_of_pieces_say_where_something_is_lacking() -> None:
    pieces = (
        StreamPiece(0, b"a\nb\n"),
        StreamPiece(2, b"b\nc\nhal"),
        StreamPiece(100, b"f\nd\n\xe2\x82\xac\n"),
    )
    assert rows_of(pieces) == ["a", "b", "c", "hal", "\x0091", "d", "€"]
    assert rows_of(()) == []


PROGRAM = """
import atexit, sys
class Noisy:
    def __del__(self): raise OSError("not closed")
def load(): raise KeyError("weights")
print("a warning", file=sys.stderr)
atexit.register(print, "good bye", file=sys.stderr)
noisy = Noisy()
try:
    load()
except KeyError as error:
    raise RuntimeError("no checkpoint") from error
"""


def test_P8_what_this_python_prints_is_understood(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(PROGRAM)
    ran = subprocess.run([sys.executable, str(tmp_path / "a.py")], capture_output=True, text=True)
    assert "not closed" in ran.stderr
    told = read(ran.stderr, source=PROGRAM)
    assert told.traceback.startswith(HEADER)
    assert "KeyError: 'weights'\n\nThe above exception" in told.traceback
    assert told.error.splitlines()[0] == "RuntimeError: no checkpoint"
    assert "not closed" not in told.traceback


@pytest.mark.parametrize(
    ("exit_", "has", "is_all"),
    [
        (WorkerExit(1, None, detail=PLAIN), True, True),
        (WorkerExit(1, None, detail=f"\n{ranked(PLAIN)}\n"), True, True),
        (WorkerExit(1, None, detail=f"a warning\n{PLAIN}"), True, False),
        (WorkerExit(None, 6, detail=PLAIN), True, True),
        (WorkerExit(None, 2, detail=PLAIN), True, True),
        (WorkerExit(None, 9, detail=PLAIN), False, False),
        (WorkerExit(1, None, detail="no such data set"), False, False),
        (WorkerExit(1, None, message="exit code 1; last line: a", detail=PLAIN), False, False),
        (WorkerExit(1, None), False, False),
    ],
)
def test_P8_a_traceback_tells_of_the_end_unless_a_fatal_signal_was_that(
    exit_: WorkerExit, has: bool, is_all: bool
) -> None:
    assert (traceback_of(exit_), detail_is_traceback(exit_)) == (PLAIN if has else "", is_all)
