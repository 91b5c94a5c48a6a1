"""Hostfiles as people have them, and what is wrong with others."""

from __future__ import annotations

import re

import pytest

from rallypoint.integrations.hostfile import Host, read_hostfile, read_hosts, without

DEEPSPEED = """\
worker-1 slots=4
worker-2 slots=4

# the old machine
worker-3 slots=2
"""
OPEN_MPI = """\
# This is an example hostfile.
foo.example.com
bar.example.com slots=2
yow.example.com slots=4 max_slots=4   # the big one
aa  slots = 8  max-slots = 20
10.0.0.7 cpu=2
"""
MPICH = """\
host1:4
host2:2
alice@host3
"""
PBS = "n1\nn1\nn1\nn2\nn2\n"


def slots(text: str) -> dict[str, int | None]:
    return {each.name: each.slots for each in read_hostfile(text)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (DEEPSPEED, {"worker-1": 4, "worker-2": 4, "worker-3": 2}),
        (
            OPEN_MPI,
            {
                "foo.example.com": None,
                "bar.example.com": 2,
                "yow.example.com": 4,
                "aa": 8,
                "10.0.0.7": 2,
            },
        ),
        (MPICH, {"host1": 4, "host2": 2, "host3": None}),
        (PBS, {"n1": 3, "n2": 2}),
        ("node-[08-10] slots=8\r\n", {"node-08": 8, "node-09": 8, "node-10": 8}),
        ("::1\n[fe80::1]:2\n", {"::1": None, "fe80::1": 2}),
    ],
)
def test_a_hostfile_is_read_as_other_launchers_read_it(
    text: str, found: dict[str, int | None]
) -> None:
    assert slots(text) == found


def test_a_user_and_a_port_are_those_of_ssh() -> None:
    first, second = read_hostfile("bob@a port=2222\nb user=eve port = 22 slots=3\n")
    assert first == Host("a", "bob", 2222, None, None, "a")
    assert first.target == "bob@a"
    assert second == Host("b", "eve", 22, 3, None, "b")


def test_a_limit_of_slots_is_none_of_their_number() -> None:
    (host,) = read_hostfile("a max_slots=8")
    assert (host.slots, host.max_slots) == (None, 8)


def test_hosts_that_differ_in_port_alone_have_names_of_their_own() -> None:
    names = [each.name for each in read_hostfile("a port=1\na port=2\nb\n")]
    assert names == ["a:1", "a:2", "b"]


def test_a_list_of_the_command_line_has_the_same_entries() -> None:
    found = read_hosts("a, b:2,carol@n[1-2,4]:8")
    assert [(each.target, each.slots) for each in found] == [
        ("a", None),
        ("b", 2),
        *((f"carol@n{number}", 8) for number in (1, 2, 4)),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it names no host"),
        ("# nothing\n\n", "it names no host"),
        ("a\n-oProxyCommand=x\n", "line 2: '?-oProxyCommand=x'?: is not the name of a host"),
        ("a slots=x", "line 1: slots='?x'?: needs a number from 1 to 4096"),
        ("a slots=0", "line 1: slots='?0'?: needs a number from 1 to 4096"),
        ("a slots=99999999999", "line 1: slots=.*: needs a number from 1 to 4096"),
        ("a slots", "line 1: '?slots'?: needs KEY=VALUE, for example slots=8"),
        ("a slots=", "line 1: '?slots='?: needs KEY=VALUE"),
        ("a b c", "line 1: '?b'?: needs KEY=VALUE"),
        ("a gpus=8", "line 1: '?gpus=8'?: needs one of slots, max_slots, user, port"),
        ("a slots=1 slots=2", "line 1: '?slots=2'?: is given twice"),
        ("a:2 slots=2", "line 1: .*: says the slots twice"),
        ("a slots=8 max_slots=4", "line 1: slots=8: more than max_slots=4"),
        ("a port=70000", "line 1: port='?70000'?: needs a number from 1 to 65535"),
        ("ssh://a:22", "line 1: .*a port is given as port=N in a hostfile"),
        ("a,b", "line 1: '?a,b'?: is not the name of a host"),
        ("n[1-", "line 1: .*: is not the name of a host"),
        ("n[3-1]", "line 1: '3-1' is no range"),
        ("a\x1b[2J", "line 1: .*: is not the name of a host"),
        ("b@d@a", "line 1: .*: is not the name of a host"),
        ("a user=-l", "line 1: '?-l'?: is not the name of a user"),
        ("a slots=2 max_slots=3\na slots=2 max_slots=3", "a: 4 slots: more than its limit"),
    ],
)
def test_a_bad_line_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}") as raised:
        read_hostfile(text)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("text", ["", ",", "a,,b", "a,", "-v", "a b", "n[1-2]:x"])
def test_a_bad_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]"):
        read_hosts(text)


def test_excluded_hosts_are_left_out_by_any_of_their_names() -> None:
    hosts = read_hosts("a,u@b,n[1-4]")
    assert [each.name for each in without(hosts, "u@b,n[2-3],a")] == ["n1", "n4"]
    assert [each.name for each in without(hosts, "b")] == ["a", "n1", "n2", "n3", "n4"]
    for excluded, said in (("c", "'?c'? is none of the hosts"), ("a,b,n[1-4]", "no host is left")):
        with pytest.raises(ValueError, match=re.compile(said)):
            without(hosts, excluded)
