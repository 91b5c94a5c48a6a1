"""Files that are written: safely under names of ours, as it is under a name of a person."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.files import make_pipe, make_private_dir, open_named, remove_tree, safe_open

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
NOBODY = 65534


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(path: Path, flags: int) -> int | None:
    with pytest.raises(OSError) as caught:
        os.close(safe_open(str(path), flags))
    return caught.value.errno


def test_a_name_of_ours_makes_a_file_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        fd = safe_open(str(tmp_path / "new"), NEW)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "new") == 0o600
    assert not os.get_inheritable(fd)
    os.close(fd)
    assert refused(tmp_path / "new", NEW) == errno.EEXIST


def test_a_file_of_ours_is_continued(tmp_path: Path) -> None:
    for text in (b"one ", b"two"):
        fd = safe_open(str(tmp_path / "log"), APPEND)
        os.write(fd, text)
        os.close(fd)
    assert (tmp_path / "log").read_bytes() == b"one two"


def test_a_link_under_a_name_of_ours_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep")
    (tmp_path / "to_file").symlink_to(tmp_path / "precious")
    (tmp_path / "to_nothing").symlink_to(tmp_path / "never")
    for flags, number in ((APPEND, errno.ELOOP), (NEW, errno.EEXIST)):
        assert refused(tmp_path / "to_file", flags) == number
        assert refused(tmp_path / "to_nothing", flags) == number
    assert (tmp_path / "precious").read_text() == "keep"
    assert not (tmp_path / "never").exists()


def test_a_pipe_or_a_device_under_a_name_of_ours_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe", APPEND) == errno.ENXIO
    with (tmp_path / "pipe").open("r+b", buffering=0):  # now somebody reads it
        assert refused(tmp_path / "pipe", APPEND) == errno.EPERM
    assert refused(Path(os.devnull), APPEND) == errno.EPERM


def test_nothing_is_emptied_before_it_is_looked_at(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="emptied"):
        safe_open(str(tmp_path / "log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")
def test_a_file_that_another_user_has_put_there_is_refused(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    planted.touch()
    planted.chmod(0o666)
    os.chown(planted, NOBODY, NOBODY)
    assert refused(planted, APPEND) == errno.EPERM
    assert refused(planted, NEW) == errno.EEXIST
    assert planted.read_bytes() == b""


def test_what_a_person_named_is_opened_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    before = os.umask(0o027)
    try:
        fd = open_named(str(tmp_path / "link"), APPEND)
    finally:
        os.umask(before)
    assert os.get_blocking(fd)
    assert not os.get_inheritable(fd)
    os.close(fd)
    assert mode_of(tmp_path / "target") == 0o640
    os.close(open_named(os.devnull, APPEND))


def test_a_pipe_that_a_person_named_is_not_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    with pytest.raises(OSError) as caught:
        open_named(path, APPEND)
    assert caught.value.errno == errno.ENXIO
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = open_named(path, APPEND)
    assert os.get_blocking(writer)
    os.write(writer, b"line")
    assert os.read(reader, 10) == b"line"
    os.close(reader)
    os.close(writer)


def test_a_terminal_that_is_opened_does_not_become_the_controlling_one() -> None:
    """A leader of a session without a terminal would get the signals of one that it logs to."""
    program = (
        "import os; from rallypoint.files import open_named\n"
        "_, slave = os.openpty(); name = os.ttyname(slave); os.close(slave)\n"
        "open_named(name, os.O_WRONLY)\n"
        "try: os.open('/dev/tty', os.O_RDWR)\n"
        "except OSError: raise SystemExit(0)\n"
        "raise SystemExit('has a controlling terminal')"
    )
    subprocess.run([sys.executable, "-c", program], start_new_session=True, check=True)


def test_a_pipe_is_made_only_where_nothing_is(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    fd = make_pipe(str(path))
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert mode_of(path) == 0o600
    assert not os.get_blocking(fd)
    os.close(fd)
    (tmp_path / "link").symlink_to(tmp_path / "never")
    for taken in (path, tmp_path / "link"):
        with pytest.raises(FileExistsError):
            make_pipe(str(taken))


def test_a_directory_of_ours_has_a_name_that_nobody_guesses(tmp_path: Path) -> None:
    made = {make_private_dir(str(tmp_path / "job_")) for _ in range(100)}
    assert len(made) == 100
    assert {mode_of(Path(path)) for path in made} == {0o700}


def test_a_directory_is_removed_with_all_in_it_but_not_what_links_name(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    (other / "theirs").mkdir(parents=True)
    (ours / "round_0" / "1").mkdir(parents=True)
    (ours / "round_0" / "error.json").touch()
    remove_tree(str(ours))
    assert not ours.exists()
    (ours / "locked").mkdir(parents=True)
    (ours / "locked" / "link").symlink_to(other)
    (ours / "gone").symlink_to("nowhere")
    remove_tree(str(ours))
    assert not ours.exists()
    assert (other / "theirs").is_dir()
    remove_tree(str(ours))


def test_a_directory_is_removed_where_shutil_was_not_needed() -> None:
    """It takes longer to import than the rest of an agent's end."""
    program = (
        "import os, sys; from rallypoint.files import make_private_dir, remove_tree\n"
        "made = make_private_dir(sys.argv[1]); os.makedirs(made + '/round_0/1')\n"
        "remove_tree(made); print(os.path.exists(made), 'shutil' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, "/tmp/rallypoint-test"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "False False\n"
