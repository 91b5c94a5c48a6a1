"""What the registers of etcd and of Kubernetes do alike, besides what any backend does."""

from __future__ import annotations

import threading
from abc import abstractmethod

import pytest
from msgspec.structs import replace
from tests.harness.narrowed import known

from rallypoint.core.job_state import new_job
from rallypoint.core.model import Epoch, SharedSettings
from rallypoint.core.takeover.record import Leader, LeadRecord, Process, record_of
from rallypoint.errors import RecordError, RendezvousConnectionError, RendezvousStateError
from rallypoint.register.contract import RendezvousBackend
from rallypoint.register.etcd.backend import EtcdBackend
from rallypoint.register.kubernetes.backend import KubernetesRendezvousBackend
from rallypoint.register.record import Register, encode
from rallypoint.register.release import release
from rallypoint.testing.backend_contract import RendezvousBackendContract
from rallypoint.wire.death_notice import RegisterAt, ReleaseNotice

TOKEN = b"a token of the job"
SERVED = EtcdBackend | KubernetesRendezvousBackend


def stored(backend: Register, state: bytes) -> None:
    """Store a state in place of what is there."""
    found = backend.get_state()
    after = known(backend.set_state(state, None if found is None else found[1]))
    assert after[2]


def state_of(backend: Register) -> bytes | None:
    """Return what is stored."""
    found = backend.get_state()
    return None if found is None else found[0]


class ServedRegisterContract(RendezvousBackendContract):
    """Tests of a register that a server keeps. A subclass opens it."""

    run_id = "job"

    @abstractmethod
    def open(self, run_id: str, token: bytes | None) -> SERVED:
        """Open the register of this job."""

    @abstractmethod
    def open_away(self) -> SERVED:
        """Open the register at a server that cannot be reached."""

    @abstractmethod
    def places(self) -> tuple[RegisterAt, RegisterAt]:
        """Return what a guard is told of the register, and of one that cannot be reached."""

    @abstractmethod
    def contents(self) -> object:
        """Return all that the server keeps for this test."""

    def make_backend(self) -> RendezvousBackend:
        return self.open(self.run_id, TOKEN)

    def make_backend_of_another_job(self) -> RendezvousBackend:
        return self.open(self.run_id + "2", TOKEN)

    def test_L2_an_heir_tries_whether_it_could_write_and_leaves_nothing(self) -> None:
        backend, empty = self.open(self.run_id, TOKEN), self.contents()
        backend.try_writing()
        assert backend.get_state() is None
        assert self.contents() == empty
        stored(backend, b"x")
        found, before = backend.get_state(), self.contents()
        backend.try_writing()
        assert backend.get_state() == found
        assert self.contents() == before
        with pytest.raises(RendezvousConnectionError, match="Connection refused"):
            self.open_away().try_writing()

    def test_a_state_that_is_too_large_is_refused(self) -> None:
        backend = self.open(self.run_id, TOKEN)
        with pytest.raises(RendezvousStateError, match=f"takes {backend.max_state} bytes"):
            backend.set_state(b"x" * (backend.max_state + 1))
        assert backend.get_state() is None

    def test_another_token_s_register_can_not_be_read(self) -> None:
        stored(self.open(self.run_id, TOKEN), b"x")
        for token in (None, b"another"):
            with pytest.raises(RecordError, match="start all nodes with the same token"):
                self.open(self.run_id, token).get_state()

    def test_a_wait_in_another_thread_can_be_ended(self) -> None:
        backend = self.open(self.run_id, TOKEN)
        stored(backend, b"x")
        found = known(backend.get_state())
        waiting = threading.Thread(target=backend.wait_for_change, args=(found[1], 600.0))
        waiting.start()
        while waiting.is_alive():
            backend.stop_waiting()
            waiting.join(0.05)

    def test_L6_the_record_of_a_dead_leader_is_marked_and_no_other(self) -> None:
        leader = Leader(("10.0.0.1:29400",), Process("boot", 1, 10), has_workers=True)
        job = record_of(new_job(SharedSettings(self.run_id, 1, 2), 5))
        led = LeadRecord(1, Epoch(3, 7), leader, 12, job)
        register, (there, away) = self.open(self.run_id, TOKEN), self.places()
        stored(register, encode(led))
        for epoch in (Epoch(2, 7), Epoch(3, 8)):
            assert not release(ReleaseNotice(there, self.run_id, TOKEN, epoch), 1.0)
        assert state_of(register) == encode(led)
        assert release(ReleaseNotice(there, self.run_id, TOKEN, led.epoch), 1.0)
        assert state_of(register) == encode(replace(led, beat=13, is_vacant=True, is_dead=True))
        with pytest.raises(RendezvousConnectionError):
            release(ReleaseNotice(away, self.run_id, TOKEN, led.epoch), 0.2)
