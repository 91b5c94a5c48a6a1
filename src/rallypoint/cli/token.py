"""`rallypoint token`: shows the user's token, or the one of a single job."""

from __future__ import annotations

import argparse
from typing import NoReturn

from rallypoint.cli import access
from rallypoint.core.wording import shown
from rallypoint.errors import UsageError
from rallypoint.observe.printing import print_text
from rallypoint.rendezvous.token import Token, find_or_make_token

_DESCRIPTION = """\
Print the token that lets nodes into your jobs, and make one if you have none.

Nodes that share your home directory find it by themselves. Give it to other nodes as
~/.config/rallypoint/token (mode 0600), in RALLYPOINT_TOKEN, or by --token-file.
Treat it like a password: whoever has it can take part in your jobs and run code on your nodes.
"""


def run(argv: list[str]) -> int:
    """Print a token to stdout.

    Raises AccessError when a token is unsafe, malformed or can't be made, UsageError, and
    SystemExit for --help.
    """
    options = _parser().parse_args(argv)
    where = access.read_options(options)
    if where.token_file is not None:
        token: Token | None = find_or_make_token(where.token_file)
    else:
        token = where.find(create=True)
    assert token is not None, "find_token creates or raises"
    if options.run_id is not None and token.opens_one_job:
        raise UsageError(
            f"--run-id {options.run_id!r}: the token in {token.source} is good for one job already"
        )
    text = token.text() if options.run_id is None else token.text_for_job(options.run_id)
    print_text(text)
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{shown(message)} (see rallypoint token --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rallypoint token",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--run-id",
        metavar="ID",
        help="print a token that is good for the job with this id only, to hand to someone else; "
        "it can't be turned back into yours",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="use (or make) the token in FILE instead of ~/.config/rallypoint/token",
    )
    parser.add_argument(
        "--token-fd",
        metavar="N",
        type=int,
        help="use the token that can be read from the open file descriptor N, to its end",
    )
    parser.set_defaults(insecure=False)
    return parser
