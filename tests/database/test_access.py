"""Addresses of a cluster as users write them."""

from __future__ import annotations

import pytest

from penstock.database.access import Access
from penstock.errors import PenstockError


def test_addresses_have_a_port_or_the_usual_one() -> None:
    found = Access.of("10.0.0.1:1, db, [::1]:65535,[fe80::2]", {}, where="here").endpoints()
    assert found == [("10.0.0.1", 1), ("db", 9042), ("::1", 65535), ("fe80::2", 9042)]


@pytest.mark.parametrize("hosts", ["h:0", "h:65536", "h:74578", "h:99999", "h:100000", "h:", "a:b:c", "h:1,h:x"])
def test_what_is_no_address_is_refused(hosts: str) -> None:
    with pytest.raises(PenstockError, match=r"is not a valid address.*give hosts as"):
        Access.of(hosts, {}, where="here")
