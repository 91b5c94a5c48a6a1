"""The text that is replaced in workers' arguments, and two helpers."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.elastic.utils.distributed import get_socket_with_port as get_socket_with_port
from rallypoint.worker.environ import get_env_variable_or_raise as get_env_variable_or_raise


class macros:  # noqa: N801  # Its name in torch.
    """The text that is replaced in a worker's arguments.

    Any other `$` stays as it is, while torch turns `$$` into `$`.
    """

    local_rank = "${local_rank}"

    @staticmethod
    def substitute(args: Sequence[object], local_rank: str) -> list[str]:
        """Return the arguments as texts, in which `${local_rank}` is replaced by the local rank."""
        from rallypoint.agent.environ import worker_argv

        return worker_argv([str(word) for word in args], int(local_rank))
