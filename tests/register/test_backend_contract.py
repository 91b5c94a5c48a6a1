"""Our backends keep the contract of a backend, over our stores and torch's; broken ones fail it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from rallypoint.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from rallypoint.elastic.stores.file_store import FileStore
from rallypoint.elastic.stores.hash_store import HashStore
from rallypoint.elastic.stores.tcp_store import TCPStore
from rallypoint.register.contract import MemoryRendezvousBackend, RendezvousBackend, Token
from rallypoint.testing.backend_contract import RendezvousBackendContract

dist: Any = torch.distributed  # torch's types don't know all that it exports

HOST = "127.0.0.1"
RULES = [name for name in dir(RendezvousBackendContract) if name.startswith("test_")]


@pytest.mark.parametrize("token", [7, True, "text", b"no", b"", object(), (), -1], ids=repr)
def test_a_foreign_token_is_answered_with_the_state_and_false(token: Any) -> None:
    """As torch's backend does; an empty one stores nothing either."""
    for backend in (MemoryRendezvousBackend(), C10dRendezvousBackend(HashStore(), "job")):
        assert backend.set_state(b"intruder", token) is None
        now = backend.set_state(b"there")
        assert now is not None
        assert backend.set_state(b"intruder", token) == (b"there", now[1], False)


class TestMemory(RendezvousBackendContract):
    @pytest.fixture(autouse=True)
    def _store_(self) -> None:
        self.backend = MemoryRendezvousBackend()

    def make_backend(self) -> RendezvousBackend:
        return self.backend

    def make_backend_of_another_job(self) -> RendezvousBackend:
        return MemoryRendezvousBackend()


class C10d(RendezvousBackendContract):
    """Each backend over a client of its own."""

    connect: Callable[[], Any]

    def make_backend(self) -> RendezvousBackend:
        return C10dRendezvousBackend(self.connect(), "job")

    def make_backend_of_another_job(self) -> RendezvousBackend:
        return C10dRendezvousBackend(self.connect(), "job2")


class TestOurTCPStore(C10d):
    @pytest.fixture(autouse=True)
    def _store_(self) -> Iterator[None]:
        with TCPStore(HOST, 0, is_master=True, wait_for_workers=False) as server:
            self.connect = server.clone
            yield


class TestOurFileStore(C10d):
    @pytest.fixture(autouse=True)
    def _store_(self, tmp_path: Path) -> None:
        self.connect = lambda: FileStore(tmp_path / "store")


class TestTorchTCPStore(C10d):
    @pytest.fixture(autouse=True)
    def _store_(self) -> Iterator[None]:
        server = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.connect = lambda: dist.TCPStore(HOST, server.port, wait_for_workers=False)
        yield
        del self.connect


class TestTorchFileStore(C10d):
    @pytest.fixture(autouse=True)
    def _store_(self, tmp_path: Path) -> None:
        self.connect = lambda: dist.FileStore(str(tmp_path / "store"))


class SaysNothing(MemoryRendezvousBackend):
    """Torch's handler reads the state then, and so does ours."""

    def set_state(self, state: bytes, token: Token | None = None) -> None:
        super().set_state(state, token)


class ConflictTellsNothing(MemoryRendezvousBackend):
    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        after = super().set_state(state, token)
        return after if after and after[2] else None


@pytest.mark.parametrize("kind", [SaysNothing, ConflictTellsNothing])
@pytest.mark.parametrize("rule", RULES)
def test_a_backend_need_not_say_what_it_has_stored(
    kind: type[MemoryRendezvousBackend], rule: str
) -> None:
    backend = kind()

    class Contract(RendezvousBackendContract):
        def make_backend(self) -> RendezvousBackend:
            return backend

    getattr(Contract(), rule)()


class Broken(MemoryRendezvousBackend):
    """Every defect is one method of a subclass."""


class LosesUpdates(Broken):
    """Reads and writes are two steps, and nothing is compared between them."""

    def __init__(self) -> None:
        super().__init__()
        self._step = threading.Barrier(2)

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        found = self.get_state()
        if (None if found is None else found[1]) != token:
            return None if found is None else (*found, False)
        try:
            self._step.wait(0.05)  # another writer comes this far, if there is one
        except threading.BrokenBarrierError:
            self._step.reset()
        now = self.get_state()
        return super().set_state(state, None if now is None else now[1])


class TakesStaleTokens(Broken):
    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        found = self.get_state()
        return super().set_state(state, found[1] if found and token is not None else token)


class IgnoresTokens(Broken):
    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        found = self.get_state()
        return super().set_state(state, None if found is None else found[1])


class SaysThatItStored(Broken):
    """Whoever finds the bytes that it wanted to store is told that it did."""

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        after = super().set_state(state, token)
        return after and (*after[:2], after[0] == state)


class TokenIsTheValue(Broken):
    """As a store does that compares the bytes themselves."""

    def get_state(self) -> tuple[bytes, Token] | None:
        found = super().get_state()
        return None if found is None else (found[0], found[0])

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        found = super().get_state()
        known = found[1] if found is not None and found[0] == token else token and -1
        after = super().set_state(state, known)
        return after and (after[0], after[0], after[2])


class ReturnsGarbage(Broken):
    def get_state(self) -> Any:
        found = super().get_state()
        return found and [*found]


class ReturnsText(Broken):
    def set_state(self, state: bytes, token: Token | None = None) -> Any:
        after = super().set_state(state, token)
        return after and (after[0].decode("latin-1"), *after[1:])


class Blocks(Broken):
    """Until there is a state."""

    def get_state(self) -> tuple[bytes, Token] | None:
        while (found := super().get_state()) is None:
            super().wait_for_change(None, 0.1)
            if self.given_up:
                break
        return found

    given_up = False


class Truncates(Broken):
    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        return super().set_state(state[:65535], token)


class EndsAtZero(Broken):
    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        return super().set_state(state.partition(b"\0")[0], token)


class BeginsWithEmptyState(Broken):
    def get_state(self) -> tuple[bytes, Token] | None:
        return super().get_state() or (b"", 0)


class NeverWakes(Broken):
    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        threading.Event().wait(timeout)
        return False


class CriesWolf(Broken):
    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        return True


class GivesUpWaiting(Broken):
    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        return super().wait_for_change(token, 0.0)


class SortsBeats(Broken):
    def get_beats(self, nodes: Sequence[str]) -> list[int]:
        return sorted(super().get_beats(nodes))


class BeatsAreState(Broken):
    def set_beat(self, node: str, beat: int) -> None:
        super().set_beat(node, beat)
        found = self.get_state()
        self.set_state(found[0] if found else b"", found and found[1])


class NumbersJoinRequestsFromZero(Broken):
    def post_join_request(self, request: bytes) -> int:
        return super().post_join_request(request) - 1


class LosesJoinRequests(Broken):
    def join_requests_after(self, number: int) -> list[bytes | None]:
        return super().join_requests_after(number)[:3]


class StoresAndForgets(Broken):
    """Says nothing, for it has stored nothing."""

    def set_state(self, state: bytes, token: Token | None = None) -> None:
        return None


class DeletesNothing(Broken):
    def delete_join_requests(self, numbers: Sequence[int]) -> None:
        return None

    def delete_beat(self, node: str) -> None:
        return None


class UsesNumbersAgain(Broken):
    def post_join_request(self, request: bytes) -> int:
        requests = self.join_requests_after(0)
        return requests.index(None) + 1 if None in requests else super().post_join_request(request)


DEFECTS: tuple[tuple[type[Broken], str], ...] = (
    (LosesUpdates, "rule: no update is lost"),
    (TakesStaleTokens, "rule: a set with a stale token stores nothing"),
    (IgnoresTokens, "rule: without a token nothing is stored if there is a state"),
    (SaysThatItStored, "rule: of two sets with the same token one stores"),
    (TokenIsTheValue, "rule: every successful set gives a token that differs"),
    (ReturnsGarbage, "rule: get_state returns None or (bytes, token)"),
    (ReturnsText, "rule: set_state returns None or (bytes, token, was_set)"),
    (Blocks, "rule: no call waits for others: get_state"),
    (Truncates, "rule: a state comes back as it was stored"),
    (EndsAtZero, "rule: a state comes back as it was stored"),
    (BeginsWithEmptyState, "rule: a state that nobody has stored is None"),
    (NeverWakes, "rule: wait_for_change is True when the state changes"),
    (NeverWakes, "rule: wait_for_change is True if the state changed before it began"),
    (CriesWolf, "rule: wait_for_change is False when nothing changes"),
    (GivesUpWaiting, "rule: wait_for_change is False only after its timeout"),
    (SortsBeats, "rule: get_beats returns the newest beats in the order of the nodes"),
    (BeatsAreState, "rule: a beat does not change the state"),
    (NumbersJoinRequestsFromZero, "rule: join requests are numbered 1, 2, 3 and so on"),
    (LosesJoinRequests, "rule: join_requests_after gives the later ones"),
    (LosesJoinRequests, "rule: no join request is lost"),
    (StoresAndForgets, "rule: without a token a state is stored if there is none"),
    (StoresAndForgets, "rule: a set with the current token stores the state"),
    (DeletesNothing, "rule: a join request that was deleted is None"),
    (DeletesNothing, "rule: a beat that was deleted is -1"),
    (UsesNumbersAgain, "rule: the number of a join request that was deleted is not used again"),
)


@cache
def broken_rules(kind: type[MemoryRendezvousBackend]) -> list[str]:
    """What the suite says of a backend; a hopeless wait ends soon."""
    found = []
    for name in RULES:
        backend = kind()

        class Suite(RendezvousBackendContract):
            limit_s = 1.5

            def make_backend(self, backend: RendezvousBackend = backend) -> RendezvousBackend:
                return backend

        try:
            getattr(Suite(), name)()
        except AssertionError as error:
            found.append(str(error))
        finally:
            setattr(backend, "given_up", True)  # noqa: B010  only one of them knows it
    return found


@pytest.mark.parametrize(
    ("kind", "rule"), DEFECTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_broken_backend_is_told_which_rule_it_breaks(kind: type[Broken], rule: str) -> None:
    assert [message for message in broken_rules(kind) if message.startswith(rule)]


def test_what_is_optional_may_be_missing() -> None:
    class Bare(RendezvousBackend):
        """Compares and swaps, and nothing else."""

        def __init__(self) -> None:
            self._memory = MemoryRendezvousBackend()

        @property
        def name(self) -> str:
            return "bare"

        def get_state(self) -> tuple[bytes, Token] | None:
            return self._memory.get_state()

        def set_state(
            self, state: bytes, token: Token | None = None
        ) -> tuple[bytes, Token, bool] | None:
            return self._memory.set_state(state, token)

    assert broken_rules(Bare) == []


def test_a_suite_without_a_backend_says_what_to_write() -> None:
    with pytest.raises(NotImplementedError, match=r"give it make_backend\(\)"):
        RendezvousBackendContract().test_an_empty_store_has_no_state()


MY_BACKEND = """
from rallypoint.register.contract import MemoryRendezvousBackend

def empty_store():
    return {}

def MyBackend(store, run_id):
    return store.setdefault(run_id, MemoryRendezvousBackend())
"""


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "own-rendezvous.md"
    section = page.read_text().partition("## A backend")[2]
    (tmp_path / "my_backend.py").write_text(MY_BACKEND)
    (tmp_path / "test_mine.py").write_text(section.partition("```python\n")[2].partition("```")[0])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout
    assert f"{len(RULES)} passed" in ran.stdout
