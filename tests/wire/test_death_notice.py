"""F2, L6: what a guard can say of its agent, and who can't say it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace
from tests.harness.engines import (
    directory_register,
    etcd_register,
    kubernetes_register,
    read_by_etcd,
    read_by_kubernetes,
)

from rallypoint.agent.helper_processes import HelperProcesses
from rallypoint.agent.membership import AgentSetup, Membership
from rallypoint.config import AgentConfig, RendezvousConfig, WorkerConfig
from rallypoint.core.model import DeadPlace, Epoch, Stamp
from rallypoint.process.death_report import report_death, tell_next
from rallypoint.process.guard import SharedPage
from rallypoint.register.etcd.parameters import EtcdConfig
from rallypoint.register.kubernetes.parameters import KubernetesConfig
from rallypoint.wire.death_notice import (
    SECRET_BYTES,
    ByRegister,
    DeathNotice,
    Notice,
    RegisterAt,
    ReleaseNotice,
    commitment,
    decode,
    encode,
    encode_release,
    is_proven,
    with_register,
)

NOTICE = DeathNotice("127.0.0.1", 29400, "job", b"t" * 32, "life", 7, b"s" * SECRET_BYTES)


def test_F2_only_the_secret_proves_that_an_agent_died() -> None:
    committed = commitment(NOTICE.secret)
    assert is_proven(NOTICE.secret, committed)
    assert not is_proven(os.urandom(SECRET_BYTES), committed)
    assert not is_proven(committed, committed)
    assert not is_proven(b"", b""), "who has committed itself to nothing can't be proven dead"


def test_F8_a_notice_shows_neither_token_nor_secret() -> None:
    assert decode(encode(NOTICE)) == NOTICE
    assert repr(NOTICE) == "DeathNotice('life', generation=7)"


def test_F2_a_page_has_a_whole_notice_or_none() -> None:
    page = SharedPage()
    assert page.notice == b""
    page.leave_notice(encode(NOTICE))
    page.hold(5.0)
    assert decode(page.notice) == NOTICE
    page.leave_notice(b"x" * 100_000)
    assert page.notice == b"", "what does not fit is not cut off"
    page.leave_notice(encode(NOTICE))
    page.leave_notice(b"")
    assert page.notice == b""
    assert page.held_until_ns == 5_000_000_000
    with pytest.raises(msgspec.DecodeError):
        decode(page.notice)


def test_L6_a_notice_of_a_leader_names_its_register_and_fits_or_is_none() -> None:
    directory = b"/shared/\xff\xc3\xa9".decode("utf-8", "surrogateescape")
    data = encode_release(directory_register(directory), "job", b"t" * 32, Epoch(3, 2**31))
    notice = decode(data)
    assert isinstance(notice, ReleaseNotice)
    assert (notice.register.config(), notice.run_id, notice.token, notice.epoch) == (
        directory_register(directory),
        "job",
        b"t" * 32,
        Epoch(3, 2**31),
    )
    assert "tttt" not in repr(notice)
    page = SharedPage()
    page.leave_notice(data)
    assert decode(page.notice) == notice
    page.leave_notice(encode(NOTICE))
    assert decode(page.notice) == NOTICE
    page.leave_notice(
        encode_release(directory_register("/" + "d" * 5000), "job", None, Epoch(3, 7))
    )
    assert page.notice == b""


def test_L6_a_notice_of_a_leader_tells_all_that_an_etcd_asks_for_and_shows_no_password() -> None:
    etcd = EtcdConfig(("e1:2379", "e2:2379"), "https", "/p", "u", "secret", "", "/ca", "/c", "/k")
    data = encode_release(etcd_register(etcd), "job", b"t" * 32, Epoch(3, 7))
    page = SharedPage()
    page.leave_notice(data)
    notice = decode(page.notice)
    assert isinstance(notice, ReleaseNotice)
    assert read_by_etcd(notice.register.config()) == etcd
    assert (notice.run_id, notice.token) == ("job", b"t" * 32)
    assert "secret" not in repr(notice)
    assert "tttt" not in repr(notice)


def test_L6_a_notice_of_a_leader_tells_which_api_server_has_the_record() -> None:
    kubernetes = KubernetesConfig("https://10.0.0.1:443", "training", "/account")
    data = encode_release(kubernetes_register(kubernetes), "job", None, Epoch(3, 7))
    notice = decode(data)
    assert isinstance(notice, ReleaseNotice)
    assert read_by_kubernetes(notice.register.config()) == kubernetes


def test_F2_a_coordinator_that_is_gone_or_says_nothing_is_left_alone_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        notice = replace(NOTICE, port=server.getsockname()[1])
        assert not report_death(notice, 0.05)
    assert not report_death(notice)


def test_L4_a_notice_with_its_register_and_place_fits_or_tells_the_next_leader_nothing() -> None:
    place = DeadPlace(Stamp(5, 2), 1, "b")
    notice = with_register(replace(NOTICE, place=place), directory_register("/shared/jobs"))
    page = SharedPage()
    page.leave_notice(encode(notice))
    assert decode(page.notice) == notice
    assert notice.register == RegisterAt("file", b"/shared/jobs")
    # The coordinator that the agent was connected to is told in any case.
    too_long = with_register(NOTICE, directory_register("/" + "d" * 5000))
    assert too_long == NOTICE
    assert with_register(NOTICE, None) == NOTICE


def test_L4_the_next_leader_is_told_until_it_is_recorded_that_it_knows() -> None:
    answers: list[tuple[str, ...] | None] = [(), ("127.0.0.1:1",), ("127.0.0.1:1", "[::1]:1"), None]
    opened: list[Notice] = []

    def who_hears(notice: Notice, limit_s: float) -> Callable[[], tuple[str, ...] | None]:
        opened.append(notice)
        return lambda: answers.pop(0)

    place = DeadPlace(Stamp(5, 2), 1, "b")
    notice = with_register(replace(NOTICE, place=place), directory_register("/shared/jobs"))
    by_register = ByRegister(lambda notice, limit_s: None, who_hears)
    tell_next(notice, by_register, out_of_memory=False)
    assert opened == [notice]
    assert answers == [], "it has looked until nobody need be told"


class Helpers:
    """The page that an agent shares with its guard."""

    def __init__(self) -> None:
        self.page = SharedPage()

    def leave_notice(self, notice: bytes) -> None:
        self.page.leave_notice(notice)


async def test_F2_of_an_agent_that_has_left_its_job_the_guard_reports_no_death() -> None:
    """It may be killed while it waits for its console."""
    helpers = Helpers()
    helpers.leave_notice(encode(NOTICE))
    config = AgentConfig(
        rendezvous=RendezvousConfig(run_id="job"), workers=WorkerConfig(argv=("true",))
    )
    nothing: Any = None
    setup = AgentSetup(config, (), nothing, nothing, cast(HelperProcesses, helpers))
    await Membership(setup, nothing, nothing, nothing).close(0.0)
    assert helpers.page.notice == b""
