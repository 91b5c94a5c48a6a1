"""Slurm's lists of nodes, as other readers of them read them."""

from __future__ import annotations

import hostlist
import pytest
from ClusterShell.NodeSet import NodeSet
from tests.harness.node_lists import lists

from rallypoint.integrations.slurm_nodes import node_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[1-2,7,010]", ["n1", "n2", "n7", "n010"]),
        ("login,gpu[0-1]-ib,c[3]", ["login", "gpu0-ib", "gpu1-ib", "c3"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_a_list_is_read_in_its_order(text: str, names: list[str]) -> None:
    assert list(node_names(text)) == names


@pytest.mark.parametrize(
    "text",
    ["", "n[", "n[1-", "n[]", "n[1-3", "n]", "n[3-1]", "n[a]", ",n1", "n1,,n2", "n[1-999999999]"],
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]"):
        node_names(text)


def test_other_readers_read_the_same() -> None:
    for text in lists(300):
        names = node_names(text)
        assert list(names) == hostlist.expand_hostlist(text, allow_duplicates=True), text
        assert set(names) == set(NodeSet(text)), text
