"""The names of torch's `elastic.utils` that programs use."""

from __future__ import annotations

from rallypoint.elastic.utils.api import (
    get_env_variable_or_raise as get_env_variable_or_raise,
    get_socket_with_port as get_socket_with_port,
    macros as macros,
)
