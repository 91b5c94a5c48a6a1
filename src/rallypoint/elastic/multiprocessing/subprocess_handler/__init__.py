"""One program as a process, without supervision."""

from __future__ import annotations

from rallypoint.elastic.multiprocessing.subprocess_handler.handlers import (
    get_subprocess_handler as get_subprocess_handler,
)
from rallypoint.elastic.multiprocessing.subprocess_handler.subprocess_handler import (
    SubprocessHandler as SubprocessHandler,
)
