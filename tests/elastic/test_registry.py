"""Handlers by name, from here and from other packages."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.plug_ins import Fixed, install
from tests.harness.programs import run_python

from rallypoint.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousClosedException,
    RendezvousError,
    RendezvousHandlerRegistry,
    RendezvousNonRetryableError,
    RendezvousParameters,
    RendezvousTimeoutError,
    RendezvousTimeoutException,
)
from rallypoint.errors import ParameterError, RendezvousPlugInError


def params(backend: str) -> RendezvousParameters:
    return RendezvousParameters(backend, "", "job", 1, 2)


def test_a_registered_creator_makes_the_handler() -> None:
    registry = RendezvousHandlerRegistry()
    made: Callable[[Any], Fixed] = lambda given: Fixed(given.backend)  # noqa: E731
    registry.register("mine", made)
    registry.register("mine", made)
    handler = registry.create_handler(params("mine"))
    store, rank, world_size = handler.next_rendezvous()
    assert (store, rank, world_size) == ("store", 1, 2)
    assert not handler.use_agent_store
    assert not handler.wait_for_change(0)
    with pytest.raises(NotImplementedError, match="Fixed can only be polled"):
        handler.on_change(print)
    with pytest.raises(ParameterError, match="'mine' is registered already"):
        registry.register("mine", lambda given: Fixed("mine"))


def test_a_handler_of_another_name_is_refused() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", lambda given: Fixed("yours"))
    with pytest.raises(RendezvousPlugInError, match="'mine' says that it is 'yours'"):
        registry.create_handler(params("mine"))


def test_a_handler_that_does_not_know_its_name_is_taken() -> None:
    class Nameless:
        """The five oldest methods are enough; not even those are looked at here."""

    registry = RendezvousHandlerRegistry()
    made: Callable[[Any], Any] = lambda given: Nameless()  # noqa: E731
    registry.register("mine", made)
    assert isinstance(registry.create_handler(params("mine")), Nameless)


def test_a_name_of_torch_s_that_has_changed_is_told_with_the_new_one() -> None:
    with pytest.raises(ParameterError, match="'etcd-v2': give backend etcd, with the same"):
        RendezvousHandlerRegistry().create_handler(params("etcd-v2"))


def test_an_unknown_backend_is_told_with_the_known_ones() -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", lambda given: Fixed("mine"))
    with pytest.raises(
        ParameterError, match="'zookeeper': known are c10d, etcd, file, mine, static, tcp"
    ):
        registry.create_handler(params("zookeeper"))


def test_a_plug_in_is_found_by_its_entry_point_and_a_broken_one_is_named(tmp_path: Path) -> None:
    text = textwrap.dedent("""
        def good():
            from tests.harness.plug_ins import Fixed
            return lambda params: Fixed(params.backend)
        def broken():
            raise OSError("no such cluster")
        """)
    entries = [f"{name} = someone_elses:{name}" for name in ("good", "broken")]
    install(tmp_path, {"rallypoint.handlers": entries}, someone_elses=text)
    program = textwrap.dedent("""
        from rallypoint.elastic.rendezvous.api import RendezvousParameters as P
        from rallypoint.elastic.rendezvous.registry import get_rendezvous_handler
        print(get_rendezvous_handler(P("good", "", "job", 1, 1)).next_rendezvous().rank)
        try:
            get_rendezvous_handler(P("broken", "", "job", 1, 1))
        except Exception as error:
            print(type(error).__name__, error)
        """)
    done = run_python(
        program, check=True, env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    )
    rank, failure = done.stdout.splitlines()
    assert rank == "1"
    assert failure == (
        "RendezvousPlugInError the rendezvous backend 'broken' of the package someone_elses "
        "(someone_elses:broken) could not be loaded: OSError: no such cluster"
    )


def test_the_oldest_names_are_names_of_todays_errors() -> None:
    assert RendezvousClosedException is RendezvousClosedError
    assert RendezvousTimeoutException is RendezvousTimeoutError
    assert RendezvousNonRetryableError is RendezvousError


@pytest.mark.parametrize(
    ("word", "truth"), [("1", True), ("yes", True), ("T", True), ("0", False), ("No", False)]
)
def test_parameters_are_read_as_what_they_are(word: str, truth: bool) -> None:
    given = RendezvousParameters("tcp", "", "job", 1, 2, answer=word, number="7", rest="x")
    assert given.get_as_bool("answer") is truth
    assert (given.get_as_int("number"), given.get("rest"), given.get("none")) == (7, "x", None)
    assert (given.get_as_bool("none", True), given.get_as_int("none", 3)) == (True, 3)
    with pytest.raises(ParameterError, match="rest='x': needs true or false"):
        given.get_as_bool("rest")
    with pytest.raises(ParameterError, match="rest='x': needs a whole number"):
        given.get_as_int("rest")


def test_parameters_need_a_name_and_possible_numbers() -> None:
    with pytest.raises(ParameterError, match="has no name"):
        RendezvousParameters("", "", "job", 1, 1)
    with pytest.raises(ValueError, match="min_nodes=0: needs 1 or more"):
        RendezvousParameters("tcp", "", "job", 0, 1)
    with pytest.raises(ParameterError, match="max_nodes=1 is less than min_nodes=2"):
        RendezvousParameters("tcp", "", "job", 2, 1)
