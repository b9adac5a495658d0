"""The limits of connections, in all and by address."""

from __future__ import annotations

import resource
from types import SimpleNamespace

import pytest

from penstock.serve import listener


@pytest.mark.parametrize(
    ("address", "block"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "::ffff:10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_of_ipv6_the_first_half_is_an_address(address: str, block: str) -> None:
    assert listener._block(address) == block


@pytest.mark.parametrize(
    ("limits", "most", "set_to"),
    [
        ((20_000, 20_000), 10_000, None),
        ((1024, 20_000), 10_000, (10_064, 20_000)),
        ((1024, resource.RLIM_INFINITY), 10_000, (10_064, resource.RLIM_INFINITY)),
        ((256, 256), 192, (256, 256)),
        ((20, 20), 1, (20, 20)),
    ],
)
def test_open_files_bound_the_connections(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limits: tuple[int, int],
    most: int,
    set_to: tuple[int, int] | None,
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: raised.append(to))
    assert listener.room(10_000) == most
    assert raised == ([set_to] if set_to else [])
    assert ("ulimit -n" in caplog.text) == (most < 10_000)


def test_those_who_left_most_unread_are_cut_off_first() -> None:
    cut: list[int] = []

    def caller(unread: int) -> SimpleNamespace:
        return SimpleNamespace(unread=unread, transport=SimpleNamespace(abort=lambda: cut.append(unread)))

    listener._end_largest([caller(size) for size in (10, 0, 500, 70, 300)], 600)  # type: ignore[misc]
    assert cut == [500, 300]
