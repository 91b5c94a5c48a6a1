"""The registers of simulated jobs: what goes wrong with them does, and nothing else."""

from __future__ import annotations

from tests.simulator.loop import Schedule
from tests.simulator.register import CACHED_S, SimulatedRegister


class Log:
    """A register, and what it has told."""

    def __init__(self) -> None:
        self.schedule = Schedule()
        self.stored: list[bytes] = []
        self.register = SimulatedRegister(
            self.schedule, self.stored.append, self._lost, knows_the_dead=True
        )

    def _lost(self) -> None:
        self.stored.pop()

    def put(self, value: bytes, token: int | None) -> int:
        """Returns the token of what is stored."""
        answer = self.register.set_state(value, token)
        assert answer is not None
        assert answer[2]
        return answer[1]


def test_one_of_two_swaps_of_the_same_value_is_stored() -> None:
    log = Log()
    first = log.put(b"1", None)
    log.put(b"2", first)
    assert log.register.set_state(b"3", first) == (*log.register.get_state(), False)  # type: ignore[misc]
    assert log.stored == [b"1", b"2"]


def test_with_the_power_goes_what_nobody_was_told_of_and_nothing_else() -> None:
    log = Log()
    first = log.put(b"1", None)
    assert log.register.confirm(first)
    second = log.put(b"2", first)
    log.register.lose()
    log.register.lose()
    assert log.register.get_state() == (b"1", first)
    assert not log.register.confirm(second)
    assert log.stored == [b"1"]


def test_what_has_a_successor_is_durable() -> None:
    log = Log()
    first = log.put(b"1", None)
    log.put(b"2", first)
    log.register.lose()
    log.register.lose()
    assert log.register.get_state() == (b"1", first)


def test_what_was_lost_is_never_taken_for_what_is_stored_in_its_place() -> None:
    log = Log()
    first = log.put(b"1", None)
    lost = log.put(b"2", first)
    log.register.lose()
    again = log.put(b"other", first)
    assert again != lost
    answer = log.register.set_state(b"3", lost)
    assert answer == (b"other", again, False)


def test_a_stale_machine_reads_what_it_has_seen_for_a_minute() -> None:
    log = Log()
    first = log.put(b"1", None)
    seen = log.register.get_state()
    assert log.register.answers("a", seen, is_stale=True) == (b"1", first)
    log.put(b"2", first)
    new = log.register.get_state()
    assert log.register.answers("a", new, is_stale=True) == (b"1", first)
    assert log.register.answers("b", new, is_stale=True) == new
    log.schedule.at(CACHED_S, lambda: None)
    log.schedule.step()
    assert log.register.answers("a", new, is_stale=True) == new


def test_a_machine_never_reads_less_than_its_own_swap_has_shown() -> None:
    log = Log()
    first = log.put(b"1", None)
    log.register.answers("a", log.register.get_state(), is_stale=False)
    answer = log.register.set_state(b"2", first)
    assert log.register.answers("a", answer, is_stale=True) == answer
    assert log.register.answers("a", log.register.get_state(), is_stale=True) == answer[:2]  # type: ignore[index]
