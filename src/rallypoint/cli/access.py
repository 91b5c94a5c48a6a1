"""The token of a command, and how it is hidden from other processes.

It comes from `--token-fd`, `--token-file`, RALLYPOINT_TOKEN, or the user's own file.
"""

from __future__ import annotations

import os

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.cli.parser import Scanned
from rallypoint.cli.values import Given, integer
from rallypoint.config import TOKEN_VARIABLE, AgentConfig, environ_token, is_secret
from rallypoint.coordinator.client.token import (
    JobToken,
    find_token,
    parse_token,
    read_token,
    user_home,
)
from rallypoint.core.settings import Setting
from rallypoint.core.text import shown
from rallypoint.process import syscalls


def keep_secrets() -> None:
    """Hide the token and passwords from other processes of this user, from now on.

    They are removed from the environment of this process, which must be a command's own.
    """
    syscalls.hide_process()
    for name in filter(is_secret, list(os.environ)):
        syscalls.erase_variable(name)
        del os.environ[name]


def check(*given: Given | None, insecure: bool) -> None:
    """Raise UsageError if the token has two sources, or a source together with --insecure.

    `given` has the options and variables that were given for the token, or None.
    """
    sources = [value for value in given if value is not None]
    if sources and insecure:
        raise sources[0].wrong("has no effect with --insecure; give one of the two")
    if len(sources) > 1:
        first, second, *_ = sources
        raise first.wrong(f"the token can't come from {second.origin} too; give one of the two")


def with_own_token_only(config: AgentConfig) -> AgentConfig:
    """Return the configuration with a token that opens its job only, made from the given one.

    This concerns a token from the environment or from `--token-fd`, which is read. One from a file
    is left in the file. Raises AccessError.
    """
    access = config.access
    token: JobToken | None = None
    if access.token_fd is not None:
        token = read_token(access.token_fd)
    elif access.token_text and not access.token_file and not access.insecure:
        token = parse_token(access.token_text, TOKEN_VARIABLE)
    text = None if token is None else token.text_for_job(config.rendezvous.run_id)
    return replace(config, access=replace(access, token_text=text, token_fd=None))


class Access(Struct, frozen=True):
    """The values of a command's options about its token (`token_options`)."""

    token_file: str | None
    token_fd: int | None
    insecure: bool
    has_variable: bool = False
    """Whether RALLYPOINT_TOKEN was set when the command began; it is erased soon after."""

    @property
    def source(self) -> str:
        """The source of the token: its option with the value, or RALLYPOINT_TOKEN.

        Empty: the user's own file, or there is no token.
        """
        if self.insecure:
            return ""
        if self.token_fd is not None:
            return f"--token-fd {self.token_fd}"
        if self.token_file is not None:
            return f"--token-file {shown(self.token_file)}"
        return TOKEN_VARIABLE if self.has_variable else ""

    def find(self, create: bool) -> JobToken | None:
        """Return the token; None: there is none, or none is needed.

        With `create` the user's own token is made if there is no other; see `find_token`. A token
        from a descriptor is read to its end. Raises AccessError.
        """
        if self.insecure:
            return None
        if self.token_fd is not None:
            return read_token(self.token_fd)
        return find_token(self.token_file, environ_token(), user_home(), create)


def token_options(insecure: str) -> tuple[Setting, ...]:
    """Return a command's options for its token. `insecure` is the help of --insecure."""
    return (
        Setting(
            "--token-file",
            "FILE",
            "use the token in FILE",
            "path",
            default="RALLYPOINT_TOKEN, else ~/.config/rallypoint/token",
        ),
        Setting("--token-fd", "N", "read the token from the open file descriptor N, to its end"),
        Setting("--insecure", "", insecure, "switch"),
    )


def read_access(scanned: Scanned) -> Access:
    """Return the values of the options about the token. Raises UsageError."""
    file, fd = scanned.get("--token-file"), scanned.get("--token-fd")
    insecure = scanned.on("--insecure")
    check(fd, file, insecure=insecure)
    number = integer(fd) if fd else None
    has_variable = environ_token() is not None
    return Access(file.text if file else None, number, insecure, has_variable)
