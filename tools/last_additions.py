"""The last additions of each kind in git's history, and how many files each of them touched.

An addition is the commit in which a name came into the table of its kind, under whatever name that
file had then. A name that was in the sources before, or that takes the place of another one, was
moved or renamed, and is no addition; nor is a name that came with the table, or with the oldest
commit of a shallow clone. An engine is added by the commit that made its `backend.py` or
`store.py`, the older one. What belongs to an addition and came with another commit is not counted.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

LAST = 5
SOURCE = "src/rallypoint"
PARTS = {"source": ("src/",), "tests": ("tests/", "scenarios/"), "docs": ("docs/", "*.md")}
"""What is counted apart: paths that begin so, or end so."""
ENGINES = re.compile(rf"{SOURCE}/(?:register|rendezvous)/(\w+)/(?:backend|store)\.py")


@dataclass(frozen=True)
class Addition:
    """What one commit added of a kind, and the files that it touched, by part."""

    names: tuple[str, ...]
    commit: str
    touched: dict[str, int]


def flags(tree: ast.Module) -> set[str]:
    """Return the options of the table of settings."""
    return {name for _, name in _rows(tree) if name.startswith("--")}


def messages(tree: ast.Module) -> set[str]:
    """Return the messages: structs with a tag, by which a union is decoded."""
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return {node.name for node in classes if any(word.arg == "tag" for word in node.keywords)}


def events(tree: ast.Module) -> set[str]:
    """Return the kinds of events."""
    return {name for target, name in _rows(tree) if target.isupper()}


def commands(tree: ast.Module) -> set[str]:
    """Return the keys of the table of commands."""
    tables = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Dict)
        and "COMMANDS" in ast.unparse(node).split("=")[0]
    )
    keys = (key for table in tables for key in table.keys)
    return {str(key.value) for key in keys if isinstance(key, ast.Constant)}


TABLES: dict[str, tuple[str, Callable[[ast.Module], set[str]]]] = {
    "a flag": (f"{SOURCE}/core/settings.py", flags),
    "a message": (f"{SOURCE}/core/messages.py", messages),
    "an event": (f"{SOURCE}/core/event_kinds.py", events),
    "a command": (f"{SOURCE}/cli/main.py", commands),
}
KINDS = (*TABLES, "an engine")


def _rows(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Return every call at the top of a module whose first argument is a text.

    The name that it is assigned to, and that text.
    """
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for call in ast.walk(node.value):
                if isinstance(call, ast.Call) and call.args:
                    first = call.args[0]
                    if isinstance(first, ast.Constant) and isinstance(first.value, str):
                        yield ast.unparse(targets[0]), first.value


class History:
    """The history of a repository up to one commit. Every call runs git and blocks."""

    def __init__(self, root: Path, commit: str = "HEAD") -> None:
        self._root, self._commit = root, commit

    def why_none(self) -> str:
        """Return why there is no history to read; empty: there is one."""
        top = self._git("rev-parse", "--show-toplevel")
        if top is None or Path(top.strip()).resolve() != self._root.resolve():
            return "no history: no git repository"
        return "" if self._git("rev-parse", "--verify", self._commit) else "no history: no commits"

    @property
    def is_shallow(self) -> bool:
        """Whether older commits are missing."""
        return (self._git("rev-parse", "--is-shallow-repository") or "").strip() == "true"

    def additions(self, kind: str, number: int = LAST) -> list[Addition]:
        """Return the last of a kind, the newest first; fewer, if the history has no more."""
        found = self._engines() if kind == "an engine" else self._added(*TABLES[kind])
        return [each for _, each in zip(range(number), found, strict=False)]

    def _added(self, path: str, names: Callable[[ast.Module], set[str]]) -> Iterator[Addition]:
        for commit, old, new in self._versions(path):
            before, after = (
                self._names(f"{at}:{file}", names)
                for at, file in ((f"{commit}^", old), (commit, new))
            )
            added, removed = after - before, before - after
            if before and len(removed) < len(added) and self._has_parent(commit):
                # The words of commands are in the sources for other reasons, too.
                fresh = {
                    name
                    for name in added
                    if names is commands or not self._was_there(name, f"{commit}^")
                }
                if fresh:
                    yield self._addition(commit, fresh)

    def _engines(self) -> Iterator[Addition]:
        listing = self._git("ls-tree", "-r", "--name-only", self._commit, SOURCE) or ""
        made: dict[str, tuple[int, str]] = {}
        for path in listing.split():
            if engine := ENGINES.fullmatch(path):
                *_, (commit, _, _) = self._versions(path)
                # By how many commits lie before it: two commits may have the same second.
                place = int(self._git("rev-list", "--count", commit) or "0")
                known = made.get(engine[1])
                made[engine[1]] = min(known or (place, commit), (place, commit))
        for name, (_, commit) in sorted(made.items(), key=lambda each: each[1], reverse=True):
            if self._has_parent(commit):
                yield self._addition(commit, {name})

    def _versions(self, path: str) -> Iterator[tuple[str, str, str]]:
        """Yield the commits that changed a file, the newest first, with its path before and after.

        Git follows renames; a file that was made has one path.
        """
        words = ("log", "--follow", "--format=%x00%H", "--name-status", self._commit, "--", path)
        for entry in (self._git(*words) or "").split("\0")[1:]:
            commit, *rows = entry.split("\n")
            if changed := [row.split("\t") for row in rows if row]:
                yield commit, changed[0][1], changed[0][-1]

    def _names(self, place: str, names: Callable[[ast.Module], set[str]]) -> set[str]:
        source = self._git("show", place)
        return names(ast.parse(source)) if source else set()

    def _was_there(self, name: str, commit: str) -> bool:
        """Return whether the sources of this commit have the name, as a word."""
        search = ("grep", "-q", "-I", "-E", rf"(^|[^-_[:alnum:]]){name}($|[^-_[:alnum:]])")
        return self._git(*search, commit, "--", "src") is not None

    def _has_parent(self, commit: str) -> bool:
        return self._git("rev-parse", "--verify", "--quiet", f"{commit}^") is not None

    def _addition(self, commit: str, names: set[str]) -> Addition:
        files = self._git("show", "--format=", "--name-only", "-m", "--first-parent", commit) or ""
        counts = {
            part: sum(
                any(file.startswith(end) or file.endswith(end.lstrip("*")) for end in ends)
                for file in files.splitlines()
            )
            for part, ends in PARTS.items()
        }
        return Addition(tuple(sorted(names)), commit[:8], counts)

    def _git(self, *words: str) -> str | None:
        """Return what git prints; None if it ends with an error."""
        run = partial(subprocess.run, capture_output=True, text=True, check=False)
        try:
            done = run(["git", "-C", str(self._root), *words], errors="replace")
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None
