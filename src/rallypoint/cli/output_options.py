"""Reads what a command line and an environment say of output."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, cast

from rallypoint.cli import values
from rallypoint.cli.scan import Scanned, Value
from rallypoint.config import FailureReport, OutputConfig, OutputMode
from rallypoint.core.wording import shown
from rallypoint.errors import UsageError
from rallypoint.process.logs.plan import (
    check_ranks,
    colour_wanted,
    drawing_wanted,
    names_any,
    parse_std_map,
    rank_key,
)

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
Layout = Literal["torchrun", "rounds"]

_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_output(
    scanned: Scanned,
    environ: Mapping[str, str],
    workers: int,
    known_specs: Callable[[], Sequence[str]],
    notices: list[str],
) -> OutputConfig:
    """The output of a node with so many workers. Appends to `notices`. Raises UsageError."""
    report = scanned.get("--report")
    mode, form = scanned.get("--output"), scanned.get("--log-format")
    log_dir, layout = scanned.get("--log-dir"), scanned.get("--log-layout")
    redirects, tee = scanned.get("--redirects"), scanned.get("--tee")
    max_bytes, ranks = scanned.get("--log-max-bytes"), scanned.get("--local-ranks-filter")
    chosen = values.choice(form, ("text", "json")) if form else "text"
    output = OutputConfig(
        mode=OutputMode(values.choice(mode, [m.value for m in OutputMode]) if mode else "auto"),
        quiet=scanned.on("--quiet"),
        report=FailureReport(values.choice(report, [r.value for r in FailureReport]))
        if report
        else FailureReport.AUTO,
        log_format=cast(Literal["text", "json"], chosen),
        log_level=_log_level(environ),
        log_dir=(log_dir.text or None) if log_dir else None,
        redirects=values.output_map(redirects) if redirects else "0",
        tee=values.output_map(tee) if tee else "0",
        temp_dir=environ.get("TMPDIR") or "/tmp",
        prefix_template=environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or None,
        colour=colour_wanted(
            is_terminal=True, no_color=environ.get("NO_COLOR"), term=environ.get("TERM")
        ),
        draws=drawing_wanted(term=environ.get("TERM")),
        local_ranks_filter=_ranks(ranks, workers) if ranks else None,
        duplicate_stdout_filters=_texts(scanned.get("--duplicate-stdout-filters")),
        duplicate_stderr_filters=_texts(scanned.get("--duplicate-stderr-filters")),
        log_layout=cast(Layout, values.choice(layout, ("torchrun", "rounds")))
        if layout
        else "torchrun",
        log_max_bytes=_bytes(max_bytes) if max_bytes else 0,
        logs_specs=_specs(scanned.get("--logs-specs"), known_specs),
    )
    filed = names_any(parse_std_map(output.redirects, workers, flag="--redirects"))
    teed = names_any(parse_std_map(output.tee, workers, flag="--tee"))
    if output.logs_specs == "default":
        notices += _without_effect(output, filed=filed or teed, teed=teed)
    return output


def _without_effect(output: OutputConfig, *, filed: bool, teed: bool) -> list[str]:
    """What was asked for and will not happen."""
    remarks = []
    if not teed:
        for name, texts in (
            ("--duplicate-stdout-filters", output.duplicate_stdout_filters),
            ("--duplicate-stderr-filters", output.duplicate_stderr_filters),
        ):
            if texts:
                remarks.append(f"{name} copies teed lines, and --tee is not given")
    if output.log_max_bytes and not filed:
        remarks.append("--log-max-bytes is about files, and neither --redirects nor --tee is given")
    return remarks


def _ranks(given: Value, workers: int) -> tuple[int | str, ...] | None:
    """Local and global ranks with commas between them; nothing at all is no filter."""
    if not given.text.strip():
        return None
    found = []
    for part in given.text.split(","):
        rank = rank_key(part)
        if rank is None:
            raise given.wrong("needs local ranks, for example 0,2, or global ones, as in g12")
        found.append(rank)
    check_ranks(found, workers, given.origin)
    return tuple(found)


def _texts(given: Value | None) -> tuple[str, ...]:
    """Texts with commas between them; two commas stand for one that belongs to a text."""
    if given is None or not given.text:
        return ()
    # No argument and no variable can hold a null.
    parts = given.text.replace(",,", "\0").split(",")
    texts = tuple(part.replace("\0", ",") for part in parts)
    if not all(texts):
        raise given.wrong("an empty text is in every line; ,, stands for a comma")
    return texts


def _bytes(given: Value) -> int:
    found = re.fullmatch(r"([0-9]{1,15})([KMG]?)", given.text.strip().upper().removesuffix("B"))
    if found is None or not int(found[1]):
        raise given.wrong("needs a number of bytes, with K, M or G if you like, for example 100M")
    return int(found[1]) * _UNITS[found[2]]


def _specs(given: Value | None, known: Callable[[], Sequence[str]]) -> str:
    if given is None or given.text == "default":
        return "default"
    offered = known()
    if given.text not in offered:
        near = values.nearest(given.text, offered)
        raise given.wrong(f"no package offers it; there are: {', '.join(offered)}{near}")
    return given.text


def _log_level(environ: Mapping[str, str]) -> LogLevel:
    given = environ.get("LOGLEVEL", "")
    word = given.strip().upper() or "INFO"
    if word not in _LOG_LEVELS:
        raise UsageError(f"LOGLEVEL={shown(given)}: needs one of {', '.join(_LOG_LEVELS)}")
    return cast(LogLevel, word)
