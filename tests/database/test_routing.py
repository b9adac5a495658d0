"""The node that is asked first, compared with the driver's own token map."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from cassandra.metadata import Murmur3Token
from hypothesis import given, strategies as st
from ring_cluster import TOKENS, Cluster

from penstock.database.token_ring import holders, partition_key, ring
from penstock.errors import PenstockError

NETWORK = "org.apache.cassandra.locator.NetworkTopologyStrategy"


class Node(NamedTuple):
    name: str
    datacenter: str


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1))
def test_the_owner_is_the_first_on_the_ring_from_the_token_on(keys: list[bytes]) -> None:
    everyone = sorted((int(value), address) for address, values in TOKENS.items() for value in values)
    nearby = [pair for pair in everyone if pair[1].startswith("10.0.0")]
    for local_dc, nodes in (("", everyone), ("near", nearby)):
        tokens = [Murmur3Token.from_key(key).value for key in keys]
        first = [next((address for value, address in nodes if value >= token), nodes[0][1]) for token in tokens]
        assert Cluster(local_dc).owners(*keys) == first


def test_keys_are_parted_by_owner_in_their_order() -> None:
    link: Any = Cluster()
    keys = [b"key %d" % number for number in range(100)]
    parts = ring(link, "ks").parted(keys, keys)
    assert len(parts) == 3 and sorted(key for part in parts for key in part) == sorted(keys)
    assert all(len(set(link.owners(*part))) == 1 and part == sorted(part, key=keys.index) for part in parts)


def test_a_node_that_is_away_or_alone_or_holds_what_all_hold_is_not_named() -> None:
    down, apart = Cluster(), Cluster()
    (address,) = down.owners(b"key")
    assert address
    down.hosts[address].set_down()
    apart.reached.remove(apart.hosts[address])
    assert down.owners(b"key") == apart.owners(b"key") == [None]
    alone = Cluster(nodes=1)
    assert alone.owners(b"key") == [None] and not alone.asked
    everywhere = {"class": "SimpleStrategy", "replication_factor": "3"}
    for cluster in (Cluster("elsewhere"), Cluster(replication=everywhere), Cluster(replication=None)):
        assert cluster.owners(b"key", b"another") == [None, None]


def test_the_ring_is_kept_until_it_changes() -> None:
    link: Any = Cluster(nodes=2)
    first = ring(link, "ks")
    assert ring(link, "ks") is first and link.asked == 1 and len(first.hosts) == 2
    link.hosts["10.0.1.1"] = link._host("10.0.1.1")
    link.rebuild()
    assert len(ring(link, "ks").hosts) == 3 and link.asked == 2


@pytest.mark.parametrize(
    ("replication", "holding"),
    [
        ({"class": "SimpleStrategy", "replication_factor": "2"}, "a b c"),
        ({"class": "SimpleStrategy", "replication_factor": "3"}, ""),
        ({"class": NETWORK, "near": "1", "far": "1"}, "a b c"),
        ({"class": NETWORK, "near": "1"}, "a b"),
        ({"class": NETWORK, "near": "3/1"}, "a b"),
        ({"class": NETWORK, "near": "2", "far": "1"}, ""),
        ({"class": NETWORK, "near": "['r1', 'r2']", "far": "['r1']"}, ""),
        ({"class": "LocalStrategy"}, ""),
    ],
)
def test_nodes_share_a_keyspace_unless_all_hold_all(replication: dict[str, str], holding: str) -> None:
    hosts = {Node("a", "near"), Node("b", "near"), Node("c", "far")}
    assert {host.name for host in holders(hosts, replication)} == set(holding.split())


@pytest.mark.parametrize(("cells", "key"), [([b"one"], b"one"), ([b"a", b""], b"\0\1a\0\0\0\0")])
def test_a_partition_key_of_several_columns_is_put_together(cells: list[bytes], key: bytes) -> None:
    assert partition_key(cells) == key


def test_a_part_of_a_partition_key_that_is_too_long_is_told() -> None:
    assert len(partition_key([bytes(65_535), b""])) == 65_541
    with pytest.raises(
        PenstockError, match="a value of the primary key has 65536 bytes; databases accept at most 65535"
    ):
        partition_key([b"", bytes(65_536)])
