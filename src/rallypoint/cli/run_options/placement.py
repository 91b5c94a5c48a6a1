"""The nodes that take part and their order: `--spares` and `--topology`.

Both are read first: `--spares` is taken off `--nnodes`, and `--topology` with a file or a command
is replaced by the line that it says.
"""

from __future__ import annotations

from rallypoint.cli.machine import ThisHost
from rallypoint.cli.parser import Scanned
from rallypoint.cli.values import Given, read
from rallypoint.core.settings import FLAGS
from rallypoint.errors import UsageError

_FILE, _COMMAND = "file:", "cmd:"
COMMAND_TIMEOUT_S = 10.0
"""The time limit of `--topology cmd:COMMAND`, in seconds."""
_FIXED = ("--node-rank", "--master-addr", "--master-port", "--standalone")
"""The options that mean that every node of the job takes part."""


def with_placement(scanned: Scanned, machine: ThisHost) -> Scanned:
    """Return the command line with the number of working nodes, and the topology's key.

    `--spares` reduces `--nnodes`; `--topology` with a file or a command gets the line that it says.
    Raises UsageError. Blocks while a file or a command is read, 10 s at most for a command.
    """
    found: dict[str, Given] = {}
    spares = scanned.get("--spares")
    if spares is not None and (number := read(FLAGS["--spares"], spares)):
        found["--nnodes"] = _less(scanned, spares, number)
    if (topology := scanned.get("--topology")) is not None:
        found["--topology"] = _key(topology, machine)
    return scanned.plus(found)


def _less(scanned: Scanned, spares: Given, number: int) -> Given:
    nnodes = scanned.get("--nnodes")
    for fixed in filter(None, map(scanned.get, _FIXED)):
        raise spares.wrong(f"with {fixed.origin} every node takes part, and none stands by")
    if nnodes is None:
        raise spares.wrong("needs --nnodes, with the spare nodes: --nnodes 5 --spares 1 is 4 and 1")
    if scanned.get("--rdzv-endpoint") is None and scanned.get("--rdzv-backend") is None:
        raise spares.wrong("needs --rdzv-endpoint, where the spare nodes find the others too")
    least, most = scanned.nodes
    work = most - number
    if least == most:
        least = work
    if work < max(least, 1):
        raise UsageError(f"{nnodes.origin}, {spares.origin}: leaves {max(work, 0)} nodes to work")
    return Given(f"{least}:{work}", f"{nnodes.origin}, {spares.origin}")


def _key(topology: Given, machine: ThisHost) -> Given:
    text = topology.text
    if text.startswith(_FILE):
        key = _read(topology, machine)
    elif text.startswith(_COMMAND):
        key = _ask(topology, machine)
    else:
        return topology
    lines = key.strip().splitlines()
    if len(lines) != 1:
        says = "nothing" if not lines else f"{len(lines)} lines"
        raise topology.wrong(f"says {says}: one line is needed, like rack-07")
    return Given(lines[0].strip(), f"{topology.origin}, which says {lines[0].strip()}")


def _read(topology: Given, machine: ThisHost) -> str:
    try:
        return machine.read_text(topology.text.removeprefix(_FILE))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise topology.wrong(f"can't be read: {why}") from None


def _ask(topology: Given, machine: ThisHost) -> str:
    answer = machine.ask_command(topology.text.removeprefix(_COMMAND), COMMAND_TIMEOUT_S)
    if answer is None:
        limit = f"{COMMAND_TIMEOUT_S:g} s"
        raise topology.wrong(f"failed, or took more than {limit}: try it in a shell on this node")
    return answer
