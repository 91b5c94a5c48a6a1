"""The parameters of a library call, converted to the values that the option parser takes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rallypoint.core.given import Given
from rallypoint.core.settings import CONF, NUMBERS, Setting, parameters
from rallypoint.core.text import ParameterNames
from rallypoint.errors import ParameterError, UsageError

OF_A_LAUNCH: ParameterNames = {"--master-port": "rdzv_endpoint"}
OF_A_SPEC: ParameterNames = {"--nproc-per-node": "local_world_size", "--store-port": "master_port"}
OF_A_HANDLER: ParameterNames = {"--rdzv-endpoint": "endpoint", "--rdzv-backend": "backend"}
"""The name of a rendezvous handler's parameter, by its option, where the two names differ."""
_TYPES: dict[str, tuple[type, ...]] = {
    "switch": (bool, int, str),
    "ports": (tuple, list),
    "texts": (list, tuple),
    "variables": (list, tuple),
    "styles": (list, tuple),
    "workers": (int,),
    **dict.fromkeys(NUMBERS - {"workers"}, (int, float, str)),
}
"""The Python types of a parameter's value, by kind of setting; all other kinds take a text or a
path."""


def given_by(row: Setting, value: Any, origin: str) -> Given:
    """Return the value of a library parameter as the text that the equivalent option would have.

    `origin` names the parameter in messages. Raises ParameterError for a value of a wrong type.
    """
    types = _TYPES.get(row.kind, (str, os.PathLike))
    if not any(isinstance(value, kind) for kind in types):
        raise ParameterError(f"{origin}: needs {_needs(row.kind)}")
    if row.kind == "ports":
        return Given("-".join(map(str, value)), origin)
    if row.kind == "texts":
        return Given(",".join(str(text).replace(",", ",,") for text in value), origin)
    if row.kind in ("variables", "styles"):
        return Given(",".join(map(str, value)), origin)
    return Given(os.fspath(value) if isinstance(value, os.PathLike) else str(value), origin)


def _needs(kind: str) -> str:
    if kind in NUMBERS:
        return "a number"
    lists = {
        "texts": "a list of texts",
        "variables": "a list of names",
        "styles": "a list of names",
    }
    return "(FIRST, LAST)" if kind == "ports" else lists.get(kind, "a text")


def keys_given(conf: Mapping[str, Any]) -> dict[str, Given]:
    """Return the entries of `conf`, a rendezvous configuration, as values of options.

    Each is under the option or the key of `--rdzv-conf` that says the same; an unknown key stays
    as it is. Entries that are None are left out.
    """
    rows, found = CONF | parameters(), {}
    for key, value in conf.items():
        row = rows.get(key)
        if value is None:
            continue
        if row is None:  # An engine's, of which some are secret, or none at all.
            found[key] = Given(str(value), f"the rendezvous parameter {key}")
        else:
            secret = row.field == "token_text"
            shown = key if secret else f"{key}={value!r}"
            text = str(value).strip().lower() if row.kind == "choice" else str(value)
            found[row.flag] = Given(text, f"the rendezvous parameter {shown}")
    return found


@contextmanager
def parameter_errors() -> Iterator[None]:
    """Turn usage errors of the block into ParameterError, a ValueError that torch's users catch."""
    try:
        yield
    except ValueError:
        raise
    except UsageError as error:
        raise ParameterError(str(error)) from None
