"""The options of `rallypoint launch`: its own, and those of `rallypoint run`, for all hosts."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.cli.options import RUN
from rallypoint.cli.parser import Command, paragraph
from rallypoint.core.outcomes import exit_codes_help
from rallypoint.core.settings import BY_REGISTER, FLAGS, GROUPS, Setting

_NOT_HERE = frozenset(
    {"--standalone", "--scheduler", "--node-id", "--explain", "--print-completion"}
    | {"--node-rank", "--master-addr", "--master-port"}
)
"""The options of `rallypoint run` that `rallypoint launch` does not take."""
PASSED_ON = FLAGS.keys() - _NOT_HERE
"""The options of `rallypoint run` that `rallypoint launch` takes for all hosts."""
HERE = frozenset(
    {"--nnodes", "--spares", "--rdzv-id", "--rdzv-conf", "--output", "--token-file", "--token-fd"}
)
"""The options of `rallypoint run` that `rallypoint launch` reads, and does not just pass on."""

_OTHERWISE = {
    "--nnodes": ("the same as --nodes, by its name in torchrun", "all hosts"),
    "--nproc-per-node": ("workers on each host", "its slots, or 1"),
    "--rdzv-endpoint": (
        f"where the nodes connect, with {BY_REGISTER} as well",
        "the first host, at a free port",
    ),
    "--rdzv-id": ("name of the job", "random"),
    "--token-file": ("the secret that nodes share, in a file on this machine", ""),
}
"""The help of options with another meaning here, and their defaults."""


def _row(row: Setting) -> Setting:
    about, default = _OTHERWISE.get(row.flag, (row.about, row.default))
    return replace(row, about=about, default=default)


_OWN = (
    Setting("--hosts", "HOST,...", "the hosts, as [USER@]HOST[:SLOTS], or n[1-4]", short="-H"),
    Setting(
        "--hostfile",
        "FILE",
        "file with one host a line, in the format of DeepSpeed or MPI",
        "path",
        short="-f",
    ),
    Setting("--exclude", "HOST,...", "hosts of that list to leave out"),
    Setting(
        "--nodes",
        "N|MIN:MAX",
        "number of hosts that work; further hosts stand by; below MIN the job ends",
        default="all hosts",
    ),
    Setting(
        "--env",
        "NAME[=VALUE]",
        "variable for agents and workers, with VALUE or its value here; repeatable",
        short="-x",
        repeatable=True,
    ),
    Setting(
        "--chdir", "DIR", "working directory of the agents", default="the directory of this shell"
    ),
    Setting("--working-directory", "DIR", "the same as --chdir"),
    Setting("--ssh", "COMMAND", "ssh and its options, like 'ssh -p 2222'", default="ssh"),
    Setting(
        "--python",
        "FILE",
        "Python interpreter on the hosts that has rallypoint",
        default="the path of this one",
    ),
    Setting(
        "--detach",
        "",
        "leave the agents running without this terminal; they write to files on their hosts",
        "switch",
    ),
)

LAUNCH = Command(
    "launch",
    """\
usage: rallypoint launch --hosts HOST,... [options] SCRIPT [its arguments]

Starts one agent (rallypoint run) on each host by ssh, from this terminal: one
output, one Ctrl-C, one exit code. ssh must reach the hosts without a password,
and rallypoint must be installed there.

  two hosts with 8 workers each, in this directory, which both have
    rallypoint launch --hosts node-a,node-b --nproc-per-node 8 train.py

  the hosts of a hostfile, of which 2 suffice
    rallypoint launch --hostfile hosts.txt --nodes 2:4 --max-restarts 3 train.py

  a port and a user for ssh, a variable for the workers
    rallypoint launch --hosts alice@node-a,alice@node-b --ssh 'ssh -p 2222' \\
        --env NCCL_DEBUG=INFO train.py
""",
    (
        ("Hosts", _OWN),
        *(
            (title, tuple(_row(row) for row in rows if row.flag in PASSED_ON))
            for title, rows in GROUPS
            if any(row.flag in PASSED_ON for row in rows)
        ),
    ),
    """\
The slots of a host are its --nproc-per-node, unless that option is given. Without
--rdzv-endpoint the nodes connect to the first host, at a free port; the job then
ends with that host.

The first Ctrl-C cancels the job on all hosts. The second one does not wait for
the workers. When the link to a host breaks, its agent saves a checkpoint and
leaves.

"""
    + paragraph(exit_codes_help("too few hosts, or it is worth starting again")),
    ("SCRIPT",),
    runs_a_script=True,
    elsewhere=True,
    ignored=RUN.ignored,
)
