"""What a node leaves on its machine for its guard, for commands of its user, and for the next agent
there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from rallypoint.agent.notices import Notices
from rallypoint.config import AccessConfig, RegisterConfig, RendezvousConfig
from rallypoint.core.model import Epoch, SharedSettings
from rallypoint.core.session import AgentEnd, Identity, SessionRules
from rallypoint.process.scratch import JOB_NOTE, LocalJob
from rallypoint.wire.address import Address
from rallypoint.wire.death_notice import ByRegister, DeathNotice, commitment, decode

PEER, TOKEN = Address("n1", 29400), b"t" * 32
RENDEZVOUS = RendezvousConfig(run_id="job", min_nodes=1, max_nodes=2)
ALONE = RendezvousConfig(run_id="job", min_nodes=1, max_nodes=1)
SETTINGS = SharedSettings("job", 1, 2)


class Node:
    """One agent, and what its guard has been told."""

    def __init__(self, rendezvous: RendezvousConfig, scratch: str = "") -> None:
        self.told: list[bytes] = []
        self.notices = Notices(rendezvous, AccessConfig(), self.told.append, scratch)
        rules = SessionRules(None)
        self.end = AgentEnd(Identity("", "n2", "life"), SETTINGS, rules)

    def attaches(self, led: Epoch | None = None) -> bytes:
        """Returns what the coordinator is told."""
        return self.notices.attaching(TOKEN, self.end, led, PEER, 3)


def test_F2_the_guard_is_told_a_secret_that_the_coordinator_knows_by_its_commitment() -> None:
    node = Node(RENDEZVOUS)
    first, second = node.attaches(), node.attaches()
    notices = [decode(told) for told in node.told]
    for committed, notice in zip((first, second), notices, strict=True):
        assert isinstance(notice, DeathNotice)
        assert (notice.host, notice.port, notice.generation) == ("n1", 29400, 3)
        assert committed == commitment(notice.secret)
    assert first != second, "each connection has another one"


def test_L6_the_guard_of_a_leader_releases_the_register_and_tells_no_coordinator() -> None:
    register = RegisterConfig("file", "/somewhere")
    node = Node(replace(RENDEZVOUS, register=register))
    assert node.attaches(Epoch(2, 7)) == b""
    [told] = node.told
    assert not isinstance(decode(told), DeathNotice | ByRegister)


def test_F2_a_guard_is_told_the_newest_place_and_nothing_when_the_node_has_left() -> None:
    node = Node(RENDEZVOUS)
    node.notices.placed(node.end)
    assert node.told == [], "there is nothing to tell yet"
    node.attaches()
    node.notices.placed(node.end)
    node.notices.over()
    node.notices.placed(node.end)
    first, again, last = node.told
    assert first == again
    assert last == b""


@pytest.mark.parametrize(("rendezvous", "secret"), [(RENDEZVOUS, b""), (ALONE, TOKEN)])
def test_V1_commands_of_this_user_find_the_job_by_a_note(
    rendezvous: RendezvousConfig, secret: bytes, tmp_path: Path
) -> None:
    """It has the token only where they could not find that by themselves."""
    notices = Notices(rendezvous, AccessConfig(), None, str(tmp_path))
    notices.connected(TOKEN, PEER)
    note = msgspec.json.decode((tmp_path / JOB_NOTE).read_bytes(), type=LocalJob)
    assert (note.run_id, note.address, note.secret) == ("job", "n1:29400", secret)
