"""The progress that `--progress-pattern` finds in a line of a worker's output. Pure.

A pattern is a regular expression with named groups: `step`, and where a line has them `total`,
`loss`, `tokens`, and `epoch`, if steps are counted anew in each. Or it is the name of a profile:
the expressions for the output of a common trainer, which may have the step in one line and the loss
in another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import isfinite

from msgspec import Struct

from rallypoint.wire.shm import NOTHING_REPORTED, Reported
from rallypoint.wire.shm_words import NS_PER_S

STEP = "step"
NEEDS = f"a group (?P<{STEP}>...), for example 'step (?P<{STEP}>[0-9]+)'"
_MAX_DIGITS = 40
_NUMBER = re.compile(r"([0-9.]+)([kKMGBT]?)")
_UNITS = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "B": 9, "T": 12}

_BAR = r"\s*\d+%\|[^|]*\|\s*(?P<step>\d+)/(?P<total>\d+) \["
"""The pattern of a bar of tqdm."""
_BAR_LOSS = r"(?:[^\]]*?\b(?:step_|train_)?loss(?:_step)?=(?P<loss>[^,\]\s]+))?"

_ITERATION = r"\biteration\s+(?P<step>\d+)/\s*(?P<total>\d+) \|"
_TOKENS = r"(?:.*?\bconsumed tokens:\s*(?P<tokens>\d+))?"
_LM_LOSS = r"(?:.*?\blm loss:\s*(?P<loss>[^\s|]+))?"


class Profile(Struct, frozen=True):
    """The regular expressions for the progress in the lines that one trainer prints."""

    expressions: tuple[str, ...]
    draws_bars: bool = False
    """Whether the trainer draws bars, of which one with fewer steps than the longest is an
    evaluation."""
    by_last_rank: bool = False
    """Whether the last rank of the job prints these lines, not the first."""


PROFILES: dict[str, Profile] = {
    "accelerate": Profile(
        (rf"^(?:[Ss]teps?:)?{_BAR}{_BAR_LOSS}", r"^(?P<step>\d+)it \["), draws_bars=True
    ),
    "hf-trainer": Profile(
        (
            rf"^{_BAR}",
            r"^\{.*?'loss': '?(?P<loss>[^',}]+)",
            r"^\{.*?'num_(?:input_)?tokens(?:_seen)?': '?(?P<tokens>[0-9.e+]+)",
        ),
        draws_bars=True,
    ),
    "lightning": Profile(
        (
            rf"^Epoch (?P<epoch>\d+):{_BAR}{_BAR_LOSS}",
            rf"^Epoch \d+: \|[^|]*\|\s*(?P<step>\d+)/\? \[{_BAR_LOSS}",
            r"^Epoch (?P<epoch>\d+)/\d+ +\S+ +(?P<step>\d+)/(?P<total>\d+) ",
        )
    ),
    "megatron": Profile(
        (_ITERATION + _TOKENS + _LM_LOSS,),
        by_last_rank=True,
    ),
    "torchtitan": Profile((r"\bstep:\s*(?P<step>[\d,]+)\s+loss:\s*(?P<loss>\S+)",)),
}


class PatternReading(Struct, frozen=True):
    """The progress in some lines of one worker. None: the lines do not have that value."""

    step: int | None = None
    total: int | None = None
    loss: float | None = None
    tokens: int | None = None


class ProgressPattern:
    """A progress pattern, ready to read lines: an expression, or the name of a profile.

    Raises ValueError, one line with what is wrong.
    """

    def __init__(self, text: str) -> None:
        profile = PROFILES.get(text)
        expressions = profile.expressions if profile else (text,)
        self.draws_bars = profile is not None and profile.draws_bars
        self._expressions = [_compiled(expression) for expression in expressions]
        groups = {name for one in self._expressions for name in one.groupindex}
        if STEP not in groups:
            raise ValueError(_no_step(text))
        self._wanted = groups & {STEP, "loss", "tokens"}

    def read(self, newest_first: Iterable[str]) -> PatternReading:
        """Return the progress in these lines, which come newest first: the newest of each value.

        A pattern of one expression is read no further than the newest step. Takes as long as the
        regular expression does.
        """
        found = PatternReading()
        wanted = set(self._wanted)
        for line in newest_first:
            for expression in self._expressions:
                if (match := expression.search(line)) is not None:
                    found = _merged(found, _reading(match.groupdict()))
            for name in ("step", "loss", "tokens"):
                if getattr(found, name) is not None:
                    wanted.discard(name)
            # One expression tells all that it does in one line.
            if not wanted or (len(self._expressions) == 1 and found.step is not None):
                break
        return found


class PrintedProgress:
    """One worker's progress, according to its output."""

    def __init__(self, draws_bars: bool) -> None:
        self._draws_bars = draws_bars
        self._longest = 0
        self._beside: tuple[int, int] | None = None
        """The last step and total of a bar shorter than the longest one: of an evaluation."""
        self.progress = NOTHING_REPORTED

    def read(self, found: PatternReading, now: float) -> Reported:
        """Add this reading to the progress, and return the progress.

        The reading was made at `now` seconds on CLOCK_MONOTONIC.
        """
        known = self.progress
        known = known._replace(
            loss=known.loss if found.loss is None else found.loss,
            tokens=known.tokens if found.tokens is None else found.tokens,
        )
        step, total = found.step, found.total
        if step is None:
            is_fresh, step = False, known.step
        elif self._draws_bars and total is not None and total < self._longest:
            # An evaluation: the worker is alive, and its step stays.
            is_fresh, self._beside = self._beside != (step, total), (step, total)
            step, total = known.step, known.total
        else:
            self._longest = max(self._longest, total or 0)
            is_fresh = step != known.step or not known.changes
        self.progress = known._replace(
            step=step,
            total=known.total if total is None else total,
            at_ns=int(now * NS_PER_S) if is_fresh else known.at_ns,
            changes=known.changes + is_fresh,
        )
        return self.progress


def printed_by_last_rank(text: str) -> bool:
    """Return whether the last rank of a job prints the lines of this pattern.

    Otherwise it is the first one, or all do.
    """
    return text in PROFILES and PROFILES[text].by_last_rank


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        at = "" if error.pos is None else f" at position {error.pos}"
        raise ValueError(f"not a valid regular expression: {error.msg}{at}") from None
    except (OverflowError, RecursionError, MemoryError):
        raise ValueError("not a valid regular expression: it is too large") from None


def _no_step(text: str) -> str:
    if re.fullmatch(r"[A-Za-z_-]+", text) is None:
        return f"needs {NEEDS}"
    from difflib import get_close_matches

    close = get_close_matches(text, PROFILES, n=1)
    near = f"; did you mean {close[0]}?" if close else ""
    known = ", ".join(sorted(PROFILES))
    return f"there is no such profile; there are: {known}{near} (an expression needs {NEEDS})"


def _merged(newer: PatternReading, older: PatternReading) -> PatternReading:
    newest = newer if newer.step is not None else older
    return PatternReading(
        newest.step,
        newest.total,
        older.loss if newer.loss is None else newer.loss,
        older.tokens if newer.tokens is None else newer.tokens,
    )


def _reading(groups: dict[str, str | None]) -> PatternReading:
    step, total = _whole(groups.get(STEP)), _whole(groups.get("total"))
    loss, tokens = _number(groups.get("loss")), _whole(groups.get("tokens"))
    epoch = _whole(groups.get("epoch"))
    if STEP in groups and step is None:
        return PatternReading()
    if step is not None and epoch is not None and total is not None:
        step, total = epoch * total + step, None
    return PatternReading(step, total, loss, tokens)


def _whole(text: str | None) -> int | None:
    """Return the number in a text, also one such as `1.2k`, rounded to a whole one; None: none."""
    plain = _plain(text).replace(",", "").replace("_", "")
    if plain.isascii() and plain.isdigit() and len(plain) <= _MAX_DIGITS:
        return int(plain)
    unit = _NUMBER.fullmatch(plain)
    number = _number(unit[1] if unit else plain)
    if number is None or not isfinite(number):
        return None
    return round(number * 10.0 ** (_UNITS[unit[2]] if unit else 0))


def _number(text: str | None) -> float | None:
    plain = _plain(text)
    try:
        return float(plain) if len(plain) <= _MAX_DIGITS else None
    except ValueError:
        return None


def _plain(text: str | None) -> str:
    r"""Return a number's text without surrounding characters, which `\S+` and the like include."""
    return "" if text is None else text.strip(" \t,;:|()[]{}'\"%")
