"""`rallypoint token`: shows the user's token, or the one of a single job."""

from __future__ import annotations

from rallypoint.cli import access
from rallypoint.cli.parser import Command, parse, with_hint
from rallypoint.config import check_name
from rallypoint.coordinator.client.token import JobToken, find_or_make_token
from rallypoint.core.settings import Setting
from rallypoint.errors import UsageError
from rallypoint.observe.printing import print_text

TOKEN = Command(
    "token",
    """\
usage: rallypoint token [options]

Print the token that lets nodes into your jobs, and create one if you have none.

Nodes that share your home directory find the token there. Give it to other
nodes as ~/.config/rallypoint/token (mode 0600), in RALLYPOINT_TOKEN, or by
--token-file. Treat it like a password: with it, anyone can take part in your
jobs and run code on your nodes.
""",
    (
        (
            "Options",
            (
                Setting(
                    "--run-id",
                    "ID",
                    "print a token that is valid only for this job, to give to someone else; your "
                    "own token can't be derived from it",
                ),
                Setting(
                    "--token-file",
                    "FILE",
                    "use (or create) the token in FILE",
                    "path",
                    default="~/.config/rallypoint/token",
                ),
                Setting(
                    "--token-fd",
                    "N",
                    "read the token from the open file descriptor N, to its end",
                ),
            ),
        ),
    ),
)


def run(argv: list[str]) -> int:
    """Print the user's token, or with --run-id the one derived for that job, and return 0.

    The user's token is made if there is none, in the user's own file or in that of --token-file.
    Raises AccessError when a token is unsafe, malformed or can't be made, UsageError, and
    HelpRequested.
    """
    scanned = with_hint(TOKEN, lambda: parse(TOKEN, argv, {}))
    where = with_hint(TOKEN, lambda: access.read_access(scanned))
    job = scanned.get("--run-id")
    if job is not None:
        name = job.text
        with_hint(TOKEN, lambda: check_name("--run-id", name))
    if where.token_file is not None:
        token: JobToken | None = find_or_make_token(where.token_file)
    else:
        token = where.find(create=True)
    assert token is not None, "find_token creates or raises"
    if job is not None and token.opens_one_job:
        raise UsageError(
            f"--run-id {job.text!r}: the token in {token.source} is already valid for one job only"
        )
    text = token.text() if job is None else token.text_for_job(job.text)
    print_text(text)
    return 0
