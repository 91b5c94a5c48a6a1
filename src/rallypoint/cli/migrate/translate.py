"""The translation of another launcher's command line to `rallypoint run` or `launch`. Pure.

The result is not checked here, see `command.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from rallypoint.cli.migrate.launchers import HEADS, OPTIONS, SRUN_SWITCHES
from rallypoint.cli.migrate.words import Word, quoted
from rallypoint.cli.options import RUN
from rallypoint.cli.parser import UnknownOptionError, parse
from rallypoint.core.settings import Setting
from rallypoint.core.text import shown
from rallypoint.errors import UsageError

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_HERE = re.compile(r"(localhost|127\.0\.0\.1)(?::(\d+))?")
_PREFIXES = frozenset({"exec", "nohup", "time", "env", "command", "uv", "poetry", "run"})
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "launch",
    "deepspeed.launcher.runner": "deepspeed",
    "nvidia_resiliency_ext.fault_tolerance.launcher": "ft_launcher",
}
_OF_TORCH = ("torchrun", "launch", "ft_launcher")
_PROGRAMS = {name: name for name in ("torchrun", "ft_launcher", "horovodrun", "deepspeed", "srun")}
_PROGRAMS |= dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"), "mpirun")
_START_TORCHRUN = ("accelerate", "fabric", "torchx")
_EXAMPLES = {"--node-rank": "0", "--rdzv-endpoint": "host", "--master-addr": "host"}
_TEXTS = ("text", "path", "directory", "file")
_UNKNOWN = "--insecure"
"""A stand-in for a list of options that only a shell knows: a switch that needs no other option."""


class Line(Struct):
    """The line of Rallypoint that is being made from another launcher's."""

    launcher: str
    before: list[Word]
    """The words before `rallypoint`: variables, commands such as `nohup`, or srun with its
    options."""
    command: str = "run"
    options: list[Word] = field(default_factory=list)
    program: list[Word] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    """The differences, as lines for the user."""
    lost: list[str] = field(default_factory=list)
    """Lines for a person: options and values without an equivalent."""
    facts: dict[str, Word] = field(default_factory=dict)
    """The values that become options only together with others."""

    def give(self, flag: str, value: Word | str | None = None) -> None:
        """Add an option with its value; without a value, a switch."""
        word = quoted(value) if isinstance(value, str) else value
        self.options += [quoted(flag), *([word] if word else [])]

    def number(self, name: str) -> int:
        """Return the number of a fact; 0: it is missing, no number, or only a shell knows it."""
        word = self.facts.get(name)
        return int(word.text) if word and word.text.isdecimal() else 0


def translate(words: Sequence[Word]) -> Line:
    """Return the line for the words of another launcher's command. Raises UsageError."""
    for at, word in enumerate(words):
        name, number = _launcher_at(words[at:])
        if name:
            line, rest = Line(name, list(words[:at])), list(words[at + number :])
            line.differs += [HEADS[name]] if name in HEADS else []
            if name in _OF_TORCH:
                _from_torch(line, rest)
            elif name == "srun":
                _from_srun(line, rest)
            else:
                _from_cluster(line, rest)
            return line
        if "=" not in word.text and word.text not in _PREFIXES:
            break
    first = word.text if words else ""
    if first in _START_TORCHRUN:
        raise UsageError(f"{first} starts torchrun itself: rallypoint shim {first} ... is enough")
    known = "torchrun, torch.distributed.run, ft_launcher, horovodrun, deepspeed, mpirun, mpiexec"
    raise UsageError(f"{shown(first)}: unknown launcher; known are {known}, srun")


def _launcher_at(words: Sequence[Word]) -> tuple[str, int]:
    """Return the launcher at the beginning of the words, and its number of words; empty: none."""
    base = words[0].text.rpartition("/")[2] if words else ""
    texts = [word.text for word in words if word.text != "-u"]
    if _PYTHON.fullmatch(base) and texts[1:2] == ["-m"] and len(texts) > 2:
        return _MODULES.get(texts[2], ""), [word.text for word in words].index("-m") + 2
    return _PROGRAMS.get(base, ""), 1


def stand_ins(words: Sequence[Word], options: Mapping[str, Setting]) -> list[str]:
    """Return the words for the option parser, with examples for values that a shell inserts."""
    texts: list[str] = []
    while (at := len(texts)) < len(words) and (text := words[at].text) != "--":
        if _is_list_of_options(words[at:]):
            texts.append(_UNKNOWN)
            continue
        if not text.startswith("-"):
            break
        name, equals, _ = text.partition("=")
        row = _row(options, name)
        texts.append(f"{name}={_example(row)}" if words[at].varies and row else text)
        if row and row.metavar and not equals and at + 1 < len(words):
            value = words[at + 1]
            texts.append(_example(row) if value.varies else value.text)
    return texts + [word.text for word in words[len(texts) :]]


def _is_list_of_options(words: Sequence[Word]) -> bool:
    """Return whether the first word is a shell variable that holds options of the launcher.

    It is taken for one if a script (`.py`) or `-m` comes later.
    """
    later = [word.text for word in words[1:]]
    is_variable = words[0].varies and words[0].text.startswith("$")
    return is_variable and any(text.endswith(".py") or text == "-m" for text in later)


def _row(options: Mapping[str, Setting], name: str) -> Setting | None:
    flag = name.replace("_", "-")
    exact = [row for row in options.values() if flag in (row.flag, row.short)]
    return next(iter(exact or [row for row in options.values() if row.flag.startswith(flag)]), None)


def _example(row: Setting) -> str:
    return _EXAMPLES.get(row.flag, "any" if row.kind in _TEXTS else "1")


def _name(word: Word) -> str:
    return word.text.partition("=")[0]


def _from_torch(line: Line, words: list[Word]) -> None:
    """Translate a line of torchrun, torch.distributed.launch or ft_launcher.

    Rallypoint takes torchrun's options, which stay as they are (only `etcd-v2` becomes `etcd`).
    Those that ft_launcher adds are translated.
    """
    words = [
        quoted(word.text.removesuffix("-v2")) if word.text.endswith("etcd-v2") else word
        for word in words
    ]
    while True:
        try:
            scanned = parse(RUN, stand_ins(words, RUN.options), {})
            break
        except UnknownOptionError as error:
            if line.launcher != "ft_launcher":
                raise
            at = next(n for n, word in enumerate(words) if _name(word) == error.option)
            dashed = error.option.replace("_", "-")
            name = re.sub("^--(ft-param-|ft-)?", "--ft-", dashed)
            row = OPTIONS["ft_launcher"].get(name)
            end = at + (1 if "=" in words[at].text or (row and not row.values) else 2)
            _decide(line, name, words[at:end])
            del words[at:end]
    number = len(words) - len(scanned.words)
    line.options, line.program = line.options + words[:number], words[number:]
    if line.launcher == "launch" and "--use-env" not in scanned.values and line.program:
        line.program.insert(1, quoted("--local-rank=${local_rank}"))
    for word, text in zip(words, stand_ins(words, RUN.options), strict=True):
        if text == _UNKNOWN != word.text:
            line.differs.append(f"{word.raw}: its options are ignored")
    if "--max-restarts" in scanned.values:
        line.differs.append("--max-restarts counts the failures of the whole job, not of each node")
    if "--nnodes" in scanned.values and scanned.nodes[1] > 1:
        line.differs.append(
            "nodes authenticate with a shared token: where they have no home directory "
            "in common, see rallypoint token --help"
        )


def _read(line: Line, words: list[Word]) -> list[Word]:
    """Translate the launcher's options, with which the words begin; return the rest: the program.

    Raises UsageError for an option that the launcher's table does not have.
    """
    rows = OPTIONS[line.launcher]
    while words and words[0].text.startswith("-") and words[0].text != "--":
        spelled = _name(words[0])
        name = spelled if spelled in rows else spelled.replace("_", "-")
        if name not in rows:
            raise UsageError(
                f"{shown(spelled)}: unknown option of {line.launcher}: leave it out, and "
                "look for its equivalent in rallypoint run --help"
            )
        number = 1 + (0 if "=" in words[0].text else rows[name].values)
        _decide(line, name, words[:number])
        words = words[number:]
    return words[1:] if words and words[0].text == "--" else words


def _decide(line: Line, name: str, words: Sequence[Word]) -> None:
    """Translate the option in these words to what its table says: an option, a fact, a remark."""
    row, spelled = OPTIONS[line.launcher].get(name), _name(words[0])
    if row is None or row.about.startswith("!"):
        why = row.about[1:] if row else ""
        line.lost.append(f"{spelled}: {why}" if why else spelled)
        return
    values = [words[0].after(f"{spelled}=")] if "=" in words[0].text else list(words[1:])
    if row.values and not values:
        raise UsageError(f"{spelled}: needs a value")
    value = values[-1] if values else quoted("")
    if len(values) > 1:
        value = value.filled_in(f"{values[0].text}=")
    if row.about:
        line.differs.append(f"{spelled}: {row.about}")
    if row.to.startswith("@"):
        line.facts[row.to[1:]] = value
        return
    for part in filter(None, row.to.split(";")):
        flag, _, template = part.partition(" ")
        filled = value.filled_in(template) if template.endswith("{}") else template
        line.give(flag, filled or None)


def _from_cluster(line: Line, words: list[Word]) -> None:
    """Translate a line of a launcher that is started once for all hosts."""
    rest, facts = _read(line, words), line.facts
    if line.launcher == "deepspeed":
        _as_deepspeed(line)
    if (map_by := facts.get("map-by")) and (found := re.match(r"ppr:(\d+):node", map_by.text)):
        facts["per-node"] = quoted(found[1])
    elif map_by:
        line.lost.append(f"--map-by {map_by.text}: ranks go from host to host, in their order")
    if "hosts" in facts and (found := _HERE.fullmatch(facts["hosts"].text)):
        del facts["hosts"]
        facts.setdefault("np", quoted(found[2] or "1"))
    count, per_node = facts.get("np"), facts.get("per-node")
    if facts.keys() & {"hosts", "hostfile"}:
        line.command = "launch"
        _place(line)
    elif count and per_node and count.text != per_node.text:
        raise UsageError(
            f"{count.text} processes, {per_node.text} on each node, and no hosts: give the "
            "launcher's list of hosts, or in a job of Slurm write srun --ntasks-per-node instead"
        )
    else:
        usual = "gpu" if line.launcher == "deepspeed" else "cpu"
        line.give("--nproc-per-node", per_node or count or usual)
    _program(line, rest)
    if line.launcher == "deepspeed" and "no-local-rank" not in facts:
        line.program.insert(1, quoted("--local_rank=${local_rank}"))
    if line.command == "run":
        _without_hosts(line)


def _place(line: Line) -> None:
    """Add the options of `rallypoint launch` for the hosts, and their numbers of workers."""
    hosts, per_node = line.facts.get("hosts"), line.facts.get("per-node")
    line.give(*(("--hosts", hosts) if hosts else ("--hostfile", line.facts["hostfile"])))
    listed = hosts.text.split(",") if hosts and not hosts.varies else []
    slots = [int(n) if (n := host.partition(":")[2]).isdecimal() else 1 for host in listed]
    total, has_slots = line.number("np"), any(":" in host for host in listed)
    if total and listed and not has_slots and total % len(listed) == 0:
        per_node = per_node or quoted(str(total // len(listed)))
    if per_node is not None:
        line.give("--nproc-per-node", per_node)
        slots = [int(per_node.text) if per_node.text.isdecimal() else 0] * (len(listed) or 1)
    each = slots[0] if len(set(slots)) == 1 else 0
    least, most = line.number("min") or total, line.number("max") or total
    asked = line.facts.keys() & {"np", "min", "max"}
    if asked - {"np"} or (asked and (not total or total != sum(slots))):
        is_enough = most <= sum(slots) or not listed
        if each and least % each == most % each == 0 and 0 < least <= most and is_enough:
            nodes = f"{least // each}:{most // each}"
            line.give("--nodes", nodes if least < most else str(most // each))
            line.differs.append("--nodes counts hosts; further ones stand by for lost ones")
        else:
            line.lost.append(
                "the number of processes: each host starts its slots, or --nproc-per-node; "
                "--nodes MIN:MAX says how many hosts work"
            )
    line.differs.append(
        "ssh must reach the hosts without a password, and rallypoint must be installed there"
    )


def _without_hosts(line: Line) -> None:
    """Take `--env`, `--chdir` and `--ssh`, which `rallypoint run` does not have, off its command.

    Variables go before the command; a directory becomes a remark.
    """
    for at in range(len(line.options) - 2, -1, -1):
        flag, value = line.options[at].text, line.options[at + 1]
        if flag in ("--env", "--chdir", "--ssh"):
            del line.options[at : at + 2]
            line.before[:0] = [value.assigned()] if flag == "--env" and "=" in value.text else []
            line.lost += [f"the directory: cd {value.raw} first"] if flag == "--chdir" else []


def _as_deepspeed(line: Line) -> None:
    facts, give = line.facts, line.give
    if (include := facts.get("include")) is not None:
        hosts = [part.partition(":") for part in include.text.split("@")]
        listed = [f"{host}:{len(has.split(','))}" if has else host for host, _, has in hosts]
        facts["hosts"] = quoted(",".join(listed))
        line.lost.append("--include: slots of a hostfile, and which devices a host uses")
    if (exclude := facts.get("exclude")) is not None and ":" not in exclude.text:
        give("--exclude", exclude.text.replace("@", ","))
    elif exclude is not None:
        line.lost.append("--exclude: single devices of a host")
    nodes, address, port = facts.get("nodes"), facts.get("master-addr"), facts.get("master-port")
    if "no-ssh" in facts:
        facts.pop("hostfile", None)
        give("--nnodes", nodes or "1")
        give("--master-addr", address or "127.0.0.1")
        give("--master-port", port or "29500")
        return
    if not facts.keys() & {"hosts", "hostfile"}:
        line.differs.append(
            "no hostfile: only this machine is used; DeepSpeed would read /job/hostfile"
        )
    elif nodes is not None:
        give("--nodes", nodes)
    if port is not None:
        give("--store-port", port)
    if address is not None:
        line.differs.append("--master_addr: it is always the node of rank 0")


def _program(line: Line, words: list[Word]) -> None:
    """Add the workers' program to the line, and `-m` or `--no-python` if it is not a script.

    Raises UsageError when it is missing, or when there are several.
    """
    if not words:
        raise UsageError(f"{line.launcher}: the program to start is missing")
    if ":" in (word.text for word in words):
        raise UsageError("several programs in one job (:) have no equivalent: start one job each")
    line.program = words
    base = words[0].text.rpartition("/")[2]
    if line.launcher == "deepspeed" or base.endswith(".py"):
        return
    rest = [word for word in words[1:] if word.text != "-u"]
    if _PYTHON.fullmatch(base) and rest and (rest[0].text == "-m" or rest[0].text[:1] != "-"):
        if "/" in words[0].text:
            line.give("--env", words[0].filled_in("PYTHON_EXEC={}"))
        line.program = rest
        if rest[0].text == "-m":
            line.give("-m")
            line.program = rest[1:]
        return
    line.give("--no-python")


def _from_srun(line: Line, words: list[Word]) -> None:
    """Translate a line of srun: one agent on each node instead of one task for each worker."""
    line.before.append(quoted("srun"))
    while words and words[0].text.startswith("-"):
        if found := re.fullmatch(r"(-[Nnc])(.+)", words[0].text):
            words[:1] = [quoted(found[1]), words[0].after(found[1])]
        name = _name(words[0])
        is_alone = "=" in words[0].text or name.lstrip("-") in SRUN_SWITCHES
        number = 1 if is_alone or re.fullmatch(r"-\w.+", name) else 2
        if name in OPTIONS["srun"]:
            _decide(line, name, words[:number])
        else:
            line.before += words[:number]
        words = words[number:]
    (launcher, number), facts, workers = _launcher_at(words), line.facts, 1
    nodes, per_node = facts.get("nodes"), facts.get("per-node")
    if launcher in _OF_TORCH:
        line.launcher, line.differs = launcher, []
        nodes = nodes or facts.get("np")
        _from_torch(line, words[number:])
    else:
        if per_node is None and "np" in facts:
            total, hosts = line.number("np"), line.number("nodes")
            if not total or not hosts or total % hosts:
                raise UsageError(
                    "srun: the number of tasks per node is missing: give --ntasks-per-node N"
                )
            per_node = quoted(str(total // hosts))
        if per_node is not None:
            line.give("--nproc-per-node", per_node)
            workers = int(per_node.text) if per_node.text.isdecimal() else 1
            if nodes is None and line.number("np"):
                nodes = quoted(str(-(-line.number("np") // workers)))
        _program(line, words)
        _without_hosts(line)
    placed = [("--nodes", nodes)] if nodes else []
    for flag, value in [*placed, ("--ntasks-per-node", quoted("1"))]:
        line.before += [quoted(flag), value]
    for flag in ("--cpus-per-task", "--gpus-per-node"):
        if flag in facts and not line.number(flag):
            raise UsageError(f"srun: {flag}: needs a number: that of all workers")
        if flag in facts:
            line.before += [quoted(flag), quoted(str(line.number(flag) * workers))]
