"""Addresses of brokers as users write them."""

from __future__ import annotations

import pytest

from penstock.wire.cluster import addresses


def test_addresses_of_brokers() -> None:
    found = [(one.host, one.port) for one in addresses("10.0.0.1:1, kafka:9092,[::1]:65535")]
    assert found == [("10.0.0.1", 1), ("kafka", 9092), ("::1", 65535)]


@pytest.mark.parametrize("servers", ["", "h", "h:", "h:0", "h:65536", "h:74628", "h:100000", "h:1,", "a:b:c", "::1:9"])
def test_what_is_no_address_is_refused(servers: str) -> None:
    with pytest.raises(ValueError, match="servers is not a list of host:port"):
        addresses(servers)
