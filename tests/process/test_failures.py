"""What is told of a failed worker, from real shapes of error files and last words."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from rallypoint.core.worker_exits import WorkerExit
from rallypoint.process.failures import (
    MESSAGE_LIMIT_BYTES,
    TRACEBACK_LIMIT_BYTES,
    describe_failure,
    parse_error_file,
    read_error_file,
    tells_of_lost_peer,
)
from rallypoint.process.limits import OomWatch, shared_memory_use
from rallypoint.process.relay.lines import last_lines
from rallypoint.process.relay.remembered import LastWords, StreamPiece

EXIT_1 = WorkerExit(1, None)


def said(stderr: bytes, stdout: bytes = b"") -> LastWords:
    """All that a worker wrote."""
    return LastWords((StreamPiece(0, stderr),), (StreamPiece(0, stdout),))


RECORDED = {
    "message": {
        "message": "ValueError: bad loss",
        "extraInfo": {"py_callstack": "Traceback ...\nValueError: bad loss", "timestamp": "1700"},
    }
}
CHAINED = b"""step 12
Traceback (most recent call last):
  File "train.py", line 3, in load
    raise KeyError("weights")
KeyError: 'weights'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 9, in <module>
    main()
    ~~~~^^
RuntimeError: no checkpoint
look in /ckpt
"""
WITH_RANK_PREFIX = b"""[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 9, in <module>
[rank1]:     dist.all_reduce(x)
[rank1]: RuntimeError: [gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:4711
[W123 ProcessGroup.cpp] destroy_process_group() was not called
"""
GROUP = b"""  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 2, in f
    | ValueError: inner
    +------------------------------------
"""
SYNTAX = b"""  File "x.py", line 1
    foo(
       ^
SyntaxError: '(' was never closed
"""
ABORTED = b"""terminate called after throwing an instance of 'c10::DistBackendError'
  what():  NCCL communicator was aborted on rank 3.
Exception raised from checkForNCCLErrors at ProcessGroupNCCL.cpp:2027
"""


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (CHAINED, "RuntimeError: no checkpoint"),
        (
            WITH_RANK_PREFIX,
            "RuntimeError: [gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:4711",
        ),
        (GROUP, "ValueError: inner"),
        (SYNTAX, "SyntaxError: '(' was never closed"),
        (b"\x1b[31mgrep: x: No file\x1b[0m\n\n", "exit code 1; last line: grep: x: No file"),
        (b"10%\r20%\r", "exit code 1; last line: 20%"),
        (b"", "exit code 1"),
        (
            b"Traceback (most recent call last):\n",
            "exit code 1; last line: Traceback (most recent call last):",
        ),
    ],
)
def test_P8_message_is_the_last_exception_of_the_tail(tail: bytes, message: str) -> None:
    assert describe_failure(EXIT_1, words=said(tail)).message == message


@pytest.mark.parametrize(
    ("record", "message", "raised_at"),
    [
        (RECORDED, "ValueError: bad loss", 1700.0),
        ({"message": "text", "timestamp": 12}, "text", 12.0),
        ({"message": "text", "timestamp": "12.5"}, "text", 12.5),
        ({"message": "text"}, "text", None),
        ({"message": "text", "timestamp": "soon"}, "text", None),
        ({"message": "text", "timestamp": "nan"}, "text", None),
        ({"message": {"message": "M", "errorCode": 3}}, "M", None),
        ({"message": {"message": "M", "extraInfo": {"timestamp": 5}}, "more": []}, "M", 5.0),
    ],
)
def test_P8_error_file_of_either_form_wins(
    record: object, message: str, raised_at: float | None
) -> None:
    content = json.dumps(record).encode()
    written = parse_error_file(content)
    assert written is not None
    known = describe_failure(EXIT_1, error_file=content, words=said(CHAINED))
    assert (known.message, written.raised_at) == (message, raised_at)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"message": 3}', b'{"message": {}}', b"\xff\xfe", b"[" * 100_000],
)
def test_P8_malformed_error_file_is_as_good_as_none(content: bytes) -> None:
    known = describe_failure(EXIT_1, error_file=content, words=said(CHAINED))
    assert known.message == "RuntimeError: no checkpoint"
    assert "KeyError: 'weights'" in known.detail


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RuntimeError: [gloo/tcp/pair.cc:5] Read error [::1]:5: Connection reset by peer", True),
        ("RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:3", True),
        ("BrokenPipeError: [Errno 32] Broken pipe", True),
        ("RuntimeError: Timed out waiting 1800000ms for recv operation to complete", True),
        ("torch.distributed.DistStoreError: Socket Timeout", True),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", True),
        ("DistBackendError: NCCL error: remote process exited or there was a network error", True),
        ("RuntimeError: NCCL error in: x.cpp\nncclRemoteError: A call failed", True),
        ("DistBackendError: NCCL error: ncclInvalidUsage, duplicate GPU detected", False),
        ("DistBackendError: NCCL error: unhandled cuda error", False),
        ("OSError: [Errno 98] Address already in use", False),
        ("ValueError: bad loss", False),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory", False),
        ("AssertionError: peer review", False),
    ],
)
def test_A3_consequences_of_a_lost_peer_are_told_apart(text: str, expected: bool) -> None:
    assert tells_of_lost_peer(text) is expected
    tail = f"Traceback (most recent call last):\n  File\n{text}\n".encode()
    assert describe_failure(EXIT_1, words=said(tail)).tells_of_lost_peer is expected


def test_A3_lost_peer_is_read_from_the_exception_only() -> None:
    tail = b"retrying: Connection reset by peer\n" + CHAINED
    assert not describe_failure(EXIT_1, words=said(tail)).tells_of_lost_peer


@pytest.mark.parametrize(
    ("outcome", "tail", "message", "lost_peer"),
    [
        (WorkerExit(None, 9), WITH_RANK_PREFIX, "killed by SIGKILL", False),
        (WorkerExit(None, 11, True), b"", "killed by SIGSEGV (core dumped)", False),
        (WorkerExit(None, 40), b"", "killed by signal 40", False),
        (
            WorkerExit(None, 6),
            ABORTED,
            "killed by SIGABRT: NCCL communicator was aborted on rank 3.",
            True,
        ),
        (
            WorkerExit(None, 6),
            b"free(): invalid pointer\n",
            "killed by SIGABRT: free(): invalid pointer",
            False,
        ),
        (WorkerExit(None, None), b"", "unknown exit status", False),
    ],
)
def test_A3_fatal_signal_is_named_and_outranks_last_words(
    outcome: WorkerExit, tail: bytes, message: str, lost_peer: bool
) -> None:
    known = describe_failure(outcome, words=said(tail))
    assert (known.message, known.tells_of_lost_peer) == (message, lost_peer)


def test_A7_out_of_memory_is_hinted_only_for_sigkill() -> None:
    hinted = describe_failure(WorkerExit(None, 9), out_of_memory=True).message
    assert hinted.startswith("killed by SIGKILL: out of memory (")
    assert describe_failure(EXIT_1, out_of_memory=True).message == "exit code 1"


def test_A7_of_a_bus_error_the_use_of_the_shared_memory_is_told() -> None:
    use = "/dev/shm: 63 of 64 MiB in use"
    told = describe_failure(WorkerExit(None, 7), shared_memory=use).message
    assert told == f"killed by SIGBUS: {use}"
    assert describe_failure(EXIT_1, shared_memory=use).message == "exit code 1"
    assert re.fullmatch(r"/dev/shm: \d+ of \d+ MiB in use", shared_memory_use())
    assert shared_memory_use("/no/such/place") == ""


CRASHED = (
    b"""step 7
loading
Fatal Python error: Segmentation fault

Thread 0x00007f11e3fff6c0 (most recent call first):
  File "threading.py", line 982 in run

Current thread 0x00007f120b22cb80 (most recent call first):
  File "native.py", line 519 in string_at
"""
    + b'  File "train.py", line 5 in deep\n' * 40
    + b"""
Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""
)


def test_A7_a_crash_shows_the_stack_of_the_thread_that_crashed() -> None:
    known = describe_failure(WorkerExit(None, 11, True), words=said(last_lines(CRASHED)))
    shown = known.detail.splitlines()
    assert shown[:5] == [
        "step 7",
        "loading",
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007f120b22cb80 (most recent call first):",
        '  File "native.py", line 519 in string_at',
    ]
    assert len(shown) == 19
    assert shown[-1] == "  ... and 27 more"
    aborted = describe_failure(WorkerExit(None, 6), words=said(ABORTED + CRASHED))
    assert aborted.message == "killed by SIGABRT: NCCL communicator was aborted on rank 3."
    other = describe_failure(WorkerExit(3, None), words=said(CRASHED))
    assert other.detail.endswith("(total: 2)")


def test_A7_the_stack_is_found_where_the_header_is_too_far_up() -> None:
    threads = b"Thread 0x1 (most recent call first):\n" + b'  File "t.py", line 1 in run\n' * 400
    tail = last_lines(b"Fatal Python error: Aborted\n\n" + threads + CRASHED.partition(b"\n\n")[2])
    shown = describe_failure(WorkerExit(None, 6), words=said(tail)).detail.splitlines()
    assert shown[1] == '  File "native.py", line 519 in string_at'


def test_sizes_are_bounded_and_no_character_is_torn() -> None:
    record = json.dumps({"message": "é" * 9000}).encode()
    tail = ("€" * 9000).encode()[1:]
    known = describe_failure(EXIT_1, error_file=record, words=said(tail))
    assert len(known.message.encode()) <= MESSAGE_LIMIT_BYTES
    assert set(known.message) == {"é", "."}
    assert TRACEBACK_LIMIT_BYTES - 3 < len(known.detail.encode()) <= TRACEBACK_LIMIT_BYTES
    assert set(known.detail) == {"€"}


def test_control_characters_never_reach_a_terminal() -> None:
    record = json.dumps({"message": "a\x1b]0;title\x07b\x1b[2Jc\x00d\x9be"}).encode()
    assert describe_failure(EXIT_1, error_file=record).message == "abcde"
    surrogate = b'{"message": "x\\ud800y"}'
    describe_failure(EXIT_1, error_file=surrogate).message.encode()


def test_error_file_is_read_only_when_it_is_a_small_regular_file(tmp_path: Path) -> None:
    small, large, pipe = tmp_path / "small", tmp_path / "large", tmp_path / "pipe"
    small.write_bytes(b"{}")
    large.write_bytes(b"x" * ((1 << 20) + 1))
    os.mkfifo(pipe)
    assert read_error_file(str(small)) == b"{}"
    for path in (large, pipe, tmp_path, tmp_path / "absent"):
        assert read_error_file(str(path)) is None


@pytest.mark.parametrize(
    "counters", ["low 0\noom 3\noom_kill {}\n", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"]
)
def test_oom_watch_sees_the_counter_of_either_cgroup_version_rise(
    tmp_path: Path, counters: str
) -> None:
    file = tmp_path / "events"
    file.write_text(counters.format(4))
    watch = OomWatch([str(tmp_path / "absent"), str(file)])
    assert not watch.rose()
    file.write_text(counters.format(5))
    assert watch.rose()
    watch.rearm()
    assert not watch.rose()


def test_oom_watch_without_counters_says_no() -> None:
    assert not OomWatch([]).rose()
    assert not OomWatch().rose()
