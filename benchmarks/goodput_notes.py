"""What the ranks of goodput.py have noted, by rounds."""

from __future__ import annotations

from pathlib import Path

NEW_STEPS = 8


class Rank:
    """Of one round."""

    def __init__(self, rank: int, node: str, pid: int) -> None:
        self.rank, self.node, self.pid = rank, node, pid
        self.moments: dict[str, float] = {}
        """When it started, was told to stop, went wrong, or ended."""
        self.steps: dict[int, float] = {}


class Notes:
    """`read` as often as you like."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rounds: dict[int, list[Rank]] = {}

    def read(self) -> None:
        """All of them anew."""
        self.rounds = {}
        for file in sorted(self._folder.iterdir()):
            round_, rank, node, pid = file.name.split(" ")
            found = Rank(int(rank), node, int(pid))
            for line in file.read_text().splitlines():
                what, at, step = line.split(" ")
                if what == "step":
                    found.steps[int(step)] = float(at)
                else:
                    found.moments[what] = float(at)
            self.rounds.setdefault(int(round_), []).append(found)

    @property
    def newest(self) -> int:
        """The number of the newest round."""
        self.read()
        return max(self.rounds, default=-1)

    @property
    def furthest(self) -> int:
        """The largest step of all rounds."""
        return max(self._reached(number) for number in self.rounds)

    @property
    def does_new_steps(self) -> bool:
        """The newest round has done some that no round before has."""
        numbers = sorted(self.rounds)
        before = max((self._reached(number) for number in numbers[:-1]), default=-1)
        return bool(numbers) and self._reached(numbers[-1]) >= before + NEW_STEPS

    def furthest_before(self, round_: int) -> int:
        """The largest step of the rounds before."""
        return max((self._reached(number) for number in self.rounds if number < round_), default=-1)

    def nodes(self, round_: int) -> list[str]:
        """Those of a round."""
        return [rank.node for rank in self.rounds[round_]]

    def rank_on(self, round_: int, node: str) -> int:
        """A rank on that node."""
        return next(rank.rank for rank in self.rounds[round_] if rank.node == node)

    def pids_on(self, round_: int, node: str) -> list[int]:
        """All processes there."""
        return [rank.pid for rank in self.rounds[round_] if rank.node == node]

    def _reached(self, number: int) -> int:
        return max((max(rank.steps, default=-1) for rank in self.rounds[number]), default=-1)
