"""A store in a file: real processes, real torch objects on the same file."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from tests.harness.descriptors import open_descriptors
from tests.harness.refusals import refused_in_one_line
from torch._C._distributed_c10d import FileStore as TorchFileStore

from rallypoint.elastic.stores.file_records import encode, encode_batch
from rallypoint.elastic.stores.file_store import FileStore
from rallypoint.errors import (
    AccessError,
    StoreConnectionError,
    StoreCorruptError,
    StoreError,
    StoreQueueEmptyError,
    StoreTimeoutError,
)

# Torch's threads and those of these tests are alive when a child is forked to look at a store.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

LIMIT_S = 60.0
Start = Callable[..., subprocess.Popen[str]]
"""Starts a program on the file of the test."""
OURS = "from rallypoint.elastic.stores.file_store import FileStore as Store\n"
TORCHS = "from torch.distributed import FileStore as Store\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def start(path: Path, torch_python: str) -> Iterator[Start]:
    """Runs programs that have `store` on the file, and ends them with the test."""
    running = []

    def run(program: str, kind: str = OURS, world_size: int = -1) -> subprocess.Popen[str]:
        head = f"import sys\n{kind}store = Store({str(path)!r}, {world_size})\n"
        process = subprocess.Popen(
            [torch_python if kind == TORCHS else sys.executable, "-c", head + program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        with process:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    return output.strip()


def torch_store(path: Path, world_size: int = -1) -> TorchFileStore:
    return TorchFileStore(str(path), world_size)


def holds_in_a_child(check: Callable[[], bool]) -> bool:
    """Whether it does in a fork of this process, which ends with it."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(LIMIT_S))
        with suppress(BaseException):
            os._exit(7 if check() else 1)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# One file for both


def test_torch_lists_its_count_of_users_and_ours_keeps_it(path: Path) -> None:
    ours, theirs = FileStore(path), torch_store(path)
    ours.set("k", "v")
    assert ours.list_keys() == ["k"]
    # Torch's own lists the count too, without the first letter.
    assert set(theirs.list_keys()) == {"k", "efcount/"}
    assert not ours.delete_key("refcount/")


def test_ours_and_torchs_meet_in_one_barrier(path: Path, start: Start) -> None:
    pass_three = "\n".join(
        f"store.add('before', 1); store.barrier('b{i}', 4); print(int(store.get('before')) >= {n})"
        for i, n in enumerate((4, 8, 12))
    )
    ranks = [start(pass_three, kind) for kind in (OURS, TORCHS, OURS, TORCHS)]
    assert [said(rank) for rank in ranks] == ["True\nTrue\nTrue"] * 4
    store = FileStore(path)
    assert store.get("b0/num_members") == b"4"
    with pytest.raises(StoreTimeoutError, match="barrier of 2, 1 came") as caught:
        store.barrier("b9", 2, 0.01)
    assert caught.value.missing == ("b9",)


def test_no_add_is_lost_between_processes_of_both_kinds(path: Path, start: Start) -> None:
    adds = "for _ in range(200): store.add('n', 1)"
    for process in [start(adds, kind) for kind in (OURS, TORCHS, OURS, TORCHS)]:
        said(process)
    assert FileStore(path).get("n") == b"800"


def test_the_file_is_removed_by_the_last_of_a_full_world(path: Path) -> None:
    ours, theirs = FileStore(path, 3), torch_store(path, 3)
    clone = ours.clone()
    ours.close()
    ours.close()
    with pytest.raises(StoreError, match="was closed"):
        ours.set("k", "v")
    del theirs
    assert path.exists()
    del clone
    assert not path.exists()
    for world_size, stays in ((-1, True), (2, True), (1, False)):
        FileStore(path, world_size).close()
        assert path.exists() == stays
        path.unlink(missing_ok=True)


def test_bookkeeping_is_byte_for_byte_that_of_torch(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "torchs"
    for _ in range(2):
        FileStore(path, 5).close()
        torch_store(other, 5)
    assert path.read_bytes() == other.read_bytes()
    assert path.stat().st_mode == other.stat().st_mode


# Queues


def test_each_item_of_a_queue_is_popped_once_and_torch_sees_none(path: Path, start: Start) -> None:
    store = FileStore(path, timeout=LIMIT_S)
    pop = "print(' '.join(store.queue_pop('q').decode() for _ in range(50)))"
    poppers = [start(pop) for _ in range(2)]
    for number in range(100):
        store.queue_push("q", str(number))
    taken = [[int(word) for word in said(popper).split()] for popper in poppers]
    assert sorted(taken[0] + taken[1]) == list(range(100))
    assert [sorted(numbers) for numbers in taken] == taken
    store.queue_push("q", "left")
    assert store.queue_len("q") == 1
    assert store.check(["q"])
    assert (store.num_keys(), store.list_keys(), store.delete_key("q")) == (0, [], False)
    assert set(torch_store(path).list_keys()) == {"efcount/", "leanup/"}
    assert store.queue_pop("q", block=False) == b"left"
    with pytest.raises(StoreQueueEmptyError):
        store.queue_pop("q", block=False)


# Time


def test_a_timeout_below_a_second_is_kept(path: Path) -> None:
    store = FileStore(path)
    store.set("there", "")
    waited = []
    for _ in range(5):  # the machine may be busy: one of them will not be late
        with pytest.raises(StoreTimeoutError) as caught:
            store.wait(["there", "missing"], 0.3)
        assert caught.value.missing == ("missing",)
        waited.append(caught.value.waited_s)
    assert min(waited) >= 0.3
    assert min(waited) < 0.6
    store.set_timeout(0)
    for call in (store.get, lambda key: store.multi_get(["there", key]), store.queue_pop):
        with pytest.raises(StoreTimeoutError, match="'missing'"):
            call("missing")
    assert store.get("there") == b""
    store.wait(["there"], 0)


def test_a_file_that_others_keep_locked_is_an_error_and_no_hang(path: Path) -> None:
    store = FileStore(path, timeout=0.1)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for call in (lambda: store.set("k", "v"), lambda: store.get("k"), store.num_keys):
            with pytest.raises(StoreTimeoutError, match="others lock the file") as caught:
                call()
            assert caught.value.missing == (str(path),)
    store.set("k", "v")
    assert store.get("k") == b"v"


# Writers that were killed


def append(path: Path, data: bytes) -> bytes:
    """What a writer other than ours leaves there; returns all that the file holds then."""
    with path.open("ab") as file:
        file.write(data)
    return path.read_bytes()


@pytest.mark.parametrize(
    "record", [encode(b"/torn", b"v" * 30), encode(b"refcount/", b"3"), encode(b"-push/torn", b"i")]
)
def test_a_record_cut_at_any_byte_is_ignored_then_repaired(tmp_path: Path, record: bytes) -> None:
    for cut in range(1, len(record)):
        path = tmp_path / str(cut)
        with FileStore(path, 2) as writer, writer.clone() as reader:
            writer.set("before", "x")
            whole = path.read_bytes()
            torn = append(path, record[:cut])
            assert reader.get("before") == b"x"
            assert not reader.check(["torn"])
            assert path.read_bytes() == torn
            writer.set("after", "y")
            assert path.read_bytes() == whole + encode(b"/after", b"y")
            assert reader.get("after") == torch_store(path).get("after") == b"y"
            assert sorted(reader.list_keys()) == ["after", "before"]
        assert not path.exists()


def test_a_multi_set_cut_at_any_byte_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    batch = encode_batch([(b"/a", b"1"), (b"/b", b"2" * 20)])
    committed = len(batch) - len(encode(b"/a", b"1") + encode(b"/b", b"2" * 20))
    for cut in range(1, len(batch)):
        path = tmp_path / str(cut)
        with FileStore(path) as writer, writer.clone() as reader:
            append(path, batch[:cut])
            assert reader.num_keys() == 0
            writer.set("after", "y")
            expected = {"after", "a", "b"} if cut >= committed else {"after"}
            assert set(reader.list_keys()) == expected
            assert set(torch_store(path).list_keys()) - {"efcount/"} == expected


def test_what_torch_appends_to_an_unfinished_record_is_refused_and_kept(tmp_path: Path) -> None:
    record = encode(b"/torn", b"the value of the record that was not finished")
    for cut in range(1, len(record)):
        path = tmp_path / str(cut)
        theirs = torch_store(path)
        append(path, record[:cut])
        theirs.set("theirs", "x" * 90)
        damaged = path.read_bytes()
        with pytest.raises(StoreCorruptError) as caught:
            FileStore(path)
        assert caught.value.file_name == str(path)
        assert path.read_bytes() == damaged
        path.unlink()  # torch's own would read it for ever


def test_killed_writers_leave_a_file_that_reads_right(path: Path, start: Start) -> None:
    write = (
        "number, ready = 0, sys.stdin.readline().strip()\n"
        "while True:\n"
        "    number += 1\n"
        "    store.multi_set(['x', 'y'], [str(number % 10) * 1000000] * 2)\n"
        "    if number == 3: store.set(ready, '')\n"
    )
    store = FileStore(path, timeout=LIMIT_S)
    ready = [f"ready{number}" for number in range(4)]
    for key in ready:
        writer = start(write)
        assert writer.stdin is not None
        writer.stdin.write(f"{key}\n")
        writer.stdin.flush()
        store.wait([key])
        for _ in range(3):
            x, y = store.multi_get(["x", "y"])
            assert x == y == x[:1] * 1000000
        writer.kill()
        writer.wait(LIMIT_S)
        x, y = store.multi_get(["x", "y"])
        assert x == y == x[:1] * 1000000
        assert store.add("kills", 1) == int(key[5:]) + 1
    assert set(FileStore(path).list_keys()) == {"x", "y", "kills", *ready}


# Files that are no stores, or are gone


def test_what_is_no_store_is_refused_in_one_line_and_left_alone(tmp_path: Path) -> None:
    for name, content in (("text", b"hello, world\n"), ("short", b"1\n"), ("elf", b"\x7fELF\2\1")):
        file = tmp_path / name
        file.write_bytes(content)
        with refused_in_one_line(StoreCorruptError, f"{file} is not a store's file"):
            FileStore(file)
        assert file.read_bytes() == content
    os.mkfifo(tmp_path / "pipe")
    for name, why in (
        (".", "it is a directory"),
        ("nowhere/store", "its folder does not exist"),
        ("text/store", "a part of its path is a file"),
        ("pipe", "it is not a regular file"),
    ):
        with refused_in_one_line(StoreConnectionError, why):
            FileStore(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["elf", "pipe", "short", "text"]


def test_without_permission_the_error_says_so(path: Path) -> None:
    FileStore(path).close()
    path.chmod(0o400)
    path.parent.chmod(0o755)

    def is_refused() -> bool:
        if os.geteuid() == 0:
            os.seteuid(65534)
        with pytest.raises(StoreConnectionError, match="ermission denied"):
            FileStore(path)
        return True

    assert holds_in_a_child(is_refused)


def test_on_a_full_disk_nothing_half_written_is_left(path: Path, start: Start) -> None:
    # A limit on the size of files acts as a full disk does: part of a write, then an error.
    fill = (
        "import resource, os\n"
        "from rallypoint.errors import StoreError\n"
        "store.set('k', 'v')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "size = os.path.getsize(store.path)\n"
        "for call in (store.set, store.queue_push, store.append):\n"
        "    try:\n"
        "        call('big', bytes(100000))\n"
        "    except StoreError as error:\n"
        "        print(error)\n"
        "    assert os.path.getsize(store.path) == size\n"
        "store.set('small', 'fits')\n"
    )
    lines = said(start(fill)).splitlines()
    assert len(lines) == 3
    assert all("File too large: nothing was written" in line for line in lines)
    assert FileStore(path).get("small") == torch_store(path).get("small") == b"fits"


def test_a_file_deleted_in_use_is_a_new_empty_store(path: Path) -> None:
    first, second = FileStore(path, 2), FileStore(path, 2)
    first.set("k", "v")
    assert second.get("k") == b"v"
    path.unlink()
    assert not second.check(["k"])
    assert not path.exists()
    first.set("new", "w")
    assert (second.get("new"), second.list_keys()) == (b"w", ["new"])
    second.add("n", 1)
    assert torch_store(path).get("n") == b"1"
    first.close()
    second.close()
    assert not path.exists()


def test_a_file_replaced_under_its_number_is_read_from_its_beginning(path: Path) -> None:
    store = FileStore(path)
    store.set("old", "1")
    shorter = encode(b"refcount/", b"1")
    longer = shorter + encode(b"/other", b"2" * 500)
    for content, keys in ((shorter, []), (longer, ["other"])):
        store.set("old", "1")
        path.write_bytes(content)
        assert store.list_keys() == keys


def test_another_file_under_the_path_is_read_anew_though_it_ends_alike(path: Path) -> None:
    store = FileStore(path)
    store.set("k", "old")
    store.set("pad", "x" * 500)
    assert store.get("k") == b"old"
    other = path.with_name("other")
    other.write_bytes(path.read_bytes().replace(b"old", b"new"))
    other.replace(path)
    assert store.get("k") == b"new"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreConnectionError, match="it is not a regular file"):
        store.check(["k"])


# Files of one user alone


def test_F8_a_private_store_is_made_for_its_user_alone(path: Path) -> None:
    mask = os.umask(0)
    try:
        with FileStore(path, private=True) as store, store.clone() as clone:
            store.set("k", "v")
            assert clone.get("k") == b"v"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            path.chmod(0o604)
            for one in (store, clone):
                with pytest.raises(AccessError, match=f"mode 0604.*run `chmod 600 {path}`"):
                    one.get("k")
            path.chmod(0o600)
    finally:
        os.umask(mask)


def test_F8_a_private_store_is_no_link_and_nobody_elses_file(path: Path) -> None:
    FileStore(path.with_name("target"), private=True).close()
    before = path.with_name("target").read_bytes()
    path.symlink_to("target")
    with pytest.raises(AccessError, match=f"file {path} is a symbolic link: name another one"):
        FileStore(path, private=True)
    assert path.with_name("target").read_bytes() == before
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(AccessError, match="is not a regular file"):
        FileStore(path, private=True)
    with pytest.raises(StoreConnectionError, match="its folder does not exist"):
        FileStore(path.with_name("nowhere") / "store", private=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_F8_a_private_store_of_another_user_is_refused_by_name(path: Path) -> None:
    FileStore(path, private=True).close()
    os.chown(path, 12345, -1)
    with pytest.raises(AccessError, match=r"belongs to user 12345, not to you \(user 0\)"):
        FileStore(path, private=True)


# One object, many users


def test_threads_share_an_object(path: Path) -> None:
    store = FileStore(path, timeout=LIMIT_S)

    def work(number: int) -> None:
        for _ in range(50):
            store.add("n", 1)
        store.get(f"{(number + 1) % 4}") if number else None
        store.set(str(number), "done")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert store.get("n") == b"200"
    assert set(store.list_keys()) == {"n", "0", "1", "2", "3"}


def test_a_forked_child_uses_and_drops_its_object_without_harm(path: Path) -> None:
    store = FileStore(path, 1, timeout=LIMIT_S)
    store.set("k", "v")
    # In the parent, another thread is waiting while the child begins.
    waiting = threading.Thread(target=store.get, args=("from child",))
    waiting.start()

    def uses_and_drops() -> bool:
        found = store.get("k") == b"v"
        store.set("from child", "x")
        store.close()
        return found

    assert holds_in_a_child(uses_and_drops)
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()
    assert store.get("from child") == b"x"
    store.close()
    assert not path.exists()


def test_no_descriptor_is_kept_between_operations(path: Path) -> None:
    before = open_descriptors()
    store = FileStore(path)
    store.set("k", "v")
    with pytest.raises(StoreTimeoutError):
        store.wait(["missing"], 0.01)
    with pytest.raises(StoreError, match="not a 64-bit number"):
        store.add("k", 1)
    assert open_descriptors() - before == set()
