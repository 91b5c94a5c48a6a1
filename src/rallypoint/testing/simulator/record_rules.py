"""Rules of what a job's record may not forget before its time, whoever leads.

* A pause before a restart lasts as long as it was decided, though another coordinator takes over.
* A loss of a node counts for ten minutes, and a round that has lost nodes for an hour.
* A node that did not reach the store of rank 0, and a rank 0 that others did not reach, are known
  until a round has started.
"""

from __future__ import annotations

from rallypoint.core.round_state import LOSS_HOUR_S, RECENT_LOSS_S
from rallypoint.core.takeover.record import JobRecord
from rallypoint.testing.simulator.facts import Violation

EARLY_SHARE = 0.9
"""The share of a wait that has passed at least, on the fastest clock."""


class RecordRules:
    """Compares each record of a job with the one before. Raises Violation."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int, int], float] = {}
        """When each thing was in a record first: its kind, the life of the job, its number."""

    def check(self, old: JobRecord, new: JobRecord, now_s: float) -> None:
        """Both are of one life of the job, which has no verdict yet."""
        life = new.incarnation
        losses = {loss.id for loss in old.recent_losses} - {loss.id for loss in new.recent_losses}
        self._check_wait("losses", "loss", life, losses, RECENT_LOSS_S, now_s)
        rounds = set(old.lossy_rounds) - set(new.lossy_rounds)
        self._check_wait("losses", "round", life, rounds, LOSS_HOUR_S, now_s)
        if old.backoff_s and not (new.backoff_s and new.round == old.round):
            self._check_wait("pause", "pause", life, {old.round}, old.backoff_s, now_s)
        has_started = new.is_started and (new.round, new.is_started) != (old.round, old.is_started)
        forgotten = {*old.bad_routes, *old.passed_over} - {*new.bad_routes, *new.passed_over}
        if forgotten and not has_started:
            raise Violation("held back", f"{sorted(forgotten)} are forgotten, and nothing started")

    def note(self, new: JobRecord, now_s: float) -> None:
        """This record is stored now."""
        known = [("loss", loss.id) for loss in new.recent_losses]
        known += [("round", number) for number in new.lossy_rounds]
        known += [("pause", new.round)] if new.backoff_s else []
        for kind, number in known:
            self._since.setdefault((kind, new.incarnation, number), now_s)

    def _check_wait(
        self, rule: str, kind: str, life: int, gone: set[int], length_s: float, now_s: float
    ) -> None:
        for number in gone:
            passed_s = now_s - self._since.get((kind, life, number), now_s - length_s)
            if passed_s < EARLY_SHARE * length_s:
                text = f"{kind} {number} is forgotten after {passed_s:.1f} of {length_s:g} s"
                raise Violation(rule, text)
