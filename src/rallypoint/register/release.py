"""Marks a job's record as that of a dead leader (behaviour L6), for its agent's guard.

And tells the guard of any dead agent who leads the job next (behaviour L4).

A vacant record permits a claim at once. So this may be called only when the leader's process is
dead and no worker of its node lives: the guard has seen to both. Nothing else is ever written:

* A record of another epoch, or one that is vacant, stays as it is, and so does one that can't be
  read, or that no leader writes.
* The leader may have had a swap under way when it was killed, which the file system executes later.
  Stored before ours, it fills the slot that ours was meant for: then the record is read again.
  After ours, it finds its own slot taken.
* The same holds for a swap of this module whose process was killed: whoever has claimed meanwhile
  has its slot.

All this blocks for as long as a register does, so it is run by a process that can be killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rallypoint.core.model import Epoch
from rallypoint.core.takeover import leading
from rallypoint.errors import RendezvousConnectionError, UnfitRecordError
from rallypoint.register import record as register_record
from rallypoint.register.engines import Use, make
from rallypoint.register.record import Register
from rallypoint.wire.death_notice import Notice, ReleaseNotice

_RETRY_S = 0.1
_CALL_S = 1.75
"""The limit in seconds of one call of the register, so that `release` has time for more than
one."""


def release(notice: ReleaseNotice, limit_s: float) -> bool:
    """Mark the record of the job as that of a dead leader, so that another may claim it. Blocks.

    Runs in a process that the guard of the dead leader's agent starts. A record of another epoch
    than that of the notice stays as it is, and so does one that no leader holds. Returns whether
    this call has stored the mark, as far as is known.

    A register that can't be reached is tried again until `limit_s` seconds have passed; then this
    raises RendezvousConnectionError. Also raises what else a register raises for what it can't use.
    """
    register = _register_of(notice)
    ends_at = time.monotonic() + limit_s
    while True:
        try:
            return mark_dead(register, notice.epoch)
        except RendezvousConnectionError:
            if time.monotonic() + _RETRY_S >= ends_at:
                raise
        time.sleep(_RETRY_S)


def who_hears(notice: Notice, limit_s: float) -> Callable[[], tuple[str, ...] | None]:
    """Return a function that looks into the register which leader is to be told of a dead agent.

    The function returns the leader's addresses, or None if no leader has to be told any more
    (`leading.who_hears`). It returns an empty tuple if no process leads, the register can't be
    reached, has no record, or has one that no leader writes. It raises RecordError for what is no
    record. `limit_s`: a call of the register may take twice as many seconds.
    """
    register, place = _register_of(notice, 2 * limit_s), notice.place
    assert place is not None

    def look() -> tuple[str, ...] | None:
        try:
            found = register.get_state()
            record = None if found is None else register_record.decode(found[0], notice.run_id)
        except (RendezvousConnectionError, UnfitRecordError):
            return ()
        return () if record is None else leading.who_hears(record, place)

    return look


def _register_of(notice: Notice, limit_s: float = _CALL_S) -> Register:
    assert notice.register is not None
    use = Use(notice.run_id, limit_s=limit_s)
    return make(notice.register.config(), use).open(notice.run_id, notice.token)


def mark_dead(register: Register, epoch: Epoch) -> bool:
    """Mark the job's record as that of a dead leader, if its leader has this epoch. Blocks.

    Return whether this call has stored the mark. A record that no leader writes stays as it is.
    Raises what the register raises, and RecordError for what is no record.
    """
    while (found := register.get_state()) is not None:
        data, token = found
        try:
            record = leading.released(register_record.decode(data), epoch)
        except UnfitRecordError:
            return False
        if record is None:
            return False
        after = register.set_state(register_record.encode(record), token)
        if after is not None and after[2]:
            return True
        # Another version has come in between.
    return False
