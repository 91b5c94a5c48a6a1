"""What was added last to each table, and how many files that touched, in small repositories."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tools.last_additions import History

SOURCE = "src/rallypoint"
SETTINGS, MESSAGES = f"{SOURCE}/core/settings.py", f"{SOURCE}/core/messages.py"
MAIN, EVENTS = f"{SOURCE}/cli/main.py", f"{SOURCE}/core/event_kinds.py"


class Repository:
    """One that is written commit by commit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "-q")

    def git(self, *words: str) -> str:
        identity = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        for role in ("AUTHOR", "COMMITTER"):
            identity |= {f"GIT_{role}_NAME": "me", f"GIT_{role}_EMAIL": "me@example.org"}
        done = subprocess.run(
            ["git", *words],
            cwd=self.root,
            env=os.environ | identity,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def commit(self, **files: str) -> str:
        """Write these files, `path: text`, commit all, and return the name of the commit."""
        for path, text in files.items():
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        self.git("add", "--all")
        self.git("commit", "-q", "--allow-empty", "-m", "a change")
        return self.git("rev-parse", "HEAD")[:8]

    def found(self, kind: str, number: int = 5) -> list[tuple[tuple[str, ...], str]]:
        additions = History(self.root).additions(kind, number)
        return [(each.names, each.commit) for each in additions]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def settings(*flags: str) -> str:
    rows = "".join(f'    _own("{flag}", "N", "about it"),\n' for flag in flags)
    return f'ROWS = (\n{rows}    _own("least"),\n)\n' + "# A table.\n" * 20


def test_the_last_flags_are_found_with_the_files_that_their_commits_touched(
    repository: Repository,
) -> None:
    repository.commit(**{SETTINGS: settings("--old")})
    one = repository.commit(**{SETTINGS: settings("--old", "--one"), "docs/a.md": "--one"})
    repository.commit(**{SETTINGS: settings("--old", "--one") + "# why\n"})
    both = {
        SETTINGS: settings("--b", "--old", "--one", "--a"),
        f"{SOURCE}/agent/a.py": "a",
        "tests/test_a.py": "a",
        "scenarios/a.txt": "a",
        "README.md": "a",
        "docs/b.md": "b",
        "docs/b.svg": "b",
    }
    two = repository.commit(**both)
    assert repository.found("a flag") == [(("--a", "--b"), two), (("--one",), one)]
    assert repository.found("a flag", 1) == [(("--a", "--b"), two)]
    (last, *_) = History(repository.root).additions("a flag")
    assert last.touched == {"source": 2, "tests": 2, "docs": 3}


def test_a_table_that_was_moved_is_followed_and_a_row_that_was_moved_or_renamed_is_no_addition(
    repository: Repository,
) -> None:
    before, elsewhere = "src/rallypoint/wire/settings.py", f"{SOURCE}/cli/store.py"
    repository.commit(**{before: settings("--old", "--named"), elsewhere: 'Setting("--moved")\n'})
    one = repository.commit(**{before: settings("--old", "--named", "--one")})
    (repository.root / SETTINGS).parent.mkdir(parents=True)
    repository.git("mv", before, SETTINGS)
    repository.commit(**{SETTINGS: settings("--old", "--named", "--one")})
    repository.commit(**{SETTINGS: settings("--old", "--renamed", "--one")})
    repository.commit(
        **{SETTINGS: settings("--old", "--renamed", "--one", "--moved"), elsewhere: ""}
    )
    assert repository.found("a flag") == [(("--one",), one)]


def test_messages_events_and_commands_are_found(repository: Repository) -> None:
    message = "class {0}(Struct, tag={1}):\n    pass\n"
    kinds, main = 'PHASE = EventKind("phase", "a phase")\n', 'COMMANDS = {"run": "cli.run", '
    first = message.format("Join", 1)
    repository.commit(**{MESSAGES: first, EVENTS: kinds, MAIN: main + "}"})
    repository.commit(**{MESSAGES: first + "class Part(Struct):\n    pass\n"})
    join = repository.commit(**{MESSAGES: first + message.format("Left", 2)})
    event = repository.commit(**{EVENTS: kinds + 'LEFT: EventKind = _hosted("left", "it left")\n'})
    # The word of a command may be in the sources for another reason.
    command = repository.commit(**{MAIN: main + '"phase": "cli.phase"}'})
    assert repository.found("a message") == [(("Left",), join)]
    assert repository.found("an event") == [(("left",), event)]
    assert repository.found("a command") == [(("phase",), command)]


def test_an_engine_is_added_by_the_commit_that_made_it_wherever_it_lay_then(
    repository: Repository,
) -> None:
    text = "".join(f"line = {number}\n" for number in range(20))
    repository.commit(**{MAIN: ""})
    made = repository.commit(**{f"{SOURCE}/rendezvous/etcd/backend.py": text})
    (repository.root / SOURCE / "register").mkdir()
    repository.git("mv", f"{SOURCE}/rendezvous/etcd", f"{SOURCE}/register/etcd")
    repository.commit(**{MAIN: "# moved", f"{SOURCE}/register/etcd/store.py": "x = 1\n"})
    assert repository.found("an engine") == [(("etcd",), made)]


def test_a_shallow_clone_has_the_additions_that_it_knows(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit(**{SETTINGS: settings("--old")})
    repository.commit(**{SETTINGS: settings("--old", "--one")})
    two = repository.commit(**{SETTINGS: settings("--old", "--one", "--two")})
    clone = tmp_path / "clone"
    repository.git("clone", "-q", "--depth", "2", f"file://{repository.root}", str(clone))
    history = History(clone)
    assert history.is_shallow
    assert not History(repository.root).is_shallow
    assert [each.commit for each in history.additions("a flag")] == [two]


def test_a_directory_without_a_history_of_its_own_says_so(
    repository: Repository, tmp_path: Path
) -> None:
    folder = repository.root / "src"
    folder.mkdir()
    assert History(folder).why_none() == "no history: no git repository"
    assert History(tmp_path).why_none() == "no history: no git repository"
    assert History(repository.root).why_none() == "no history: no commits"
    repository.commit()
    assert History(repository.root).why_none() == ""
