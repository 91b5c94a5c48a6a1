"""What a relay tells the agent that has started it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from rallypoint.process.relay.messages import (
    FirstOutput,
    NothingMatched,
    PatternOff,
    PatternReport,
    SharedInput,
)

StorageErrorHandler: TypeAlias = Callable[[str, int], None]


class RelayEvents(Struct, frozen=True):
    """Called in the agent's loop; None: nobody wants to know."""

    storage_error: StorageErrorHandler | None = None
    """With a path (or `stdout`, `stderr`) and the errno; once for each path."""
    first_output: Callable[[int], None] | None = None
    """Once for each round, when the first byte of any of its workers came through; a stream that
    the worker inherits or writes to its file does not come through."""
    shared_input: Callable[[], None] | None = None
    """Once, when several workers ask for input at one terminal."""
    pattern: Callable[[PatternReport], None] | None = None
    """What a person should know of `--progress-pattern`; each once."""
    lost: Callable[[int], None] | None = None
    """When the process has died before it was ended, with the number of the last round whose output
    it was given; -1: none. Then `Relay.restart` may be called."""

    def pass_on(self, report: FirstOutput | SharedInput | PatternReport) -> None:
        """Call what wants to know of this."""
        match report:
            case FirstOutput(round_number) if self.first_output is not None:
                self.first_output(round_number)
            case SharedInput() if self.shared_input is not None:
                self.shared_input()
            case PatternOff() | NothingMatched() if self.pattern is not None:
                self.pattern(report)
