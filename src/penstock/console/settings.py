"""What the console shows and what it may do, as the options of its command say."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.kafka.brokers import Brokers
from penstock.serve.http_client import Address


@dataclass(frozen=True)
class ConsoleSettings:
    """The Kafkas are `kafka` and those of the runs, without any of them `local`; only `kafka` may have TLS and a login.

    `token` is None if the console is read-only. `mask` are names of fields whose values are hidden; without `messages`
    no record is shown at all.
    """

    targets: tuple[Address, ...] = ()
    checkpoints: Path | None = None
    kafka: Brokers | None = None
    local: str | None = None
    registry: str | None = field(default=None, repr=False)
    connect: tuple[Address, ...] = ()
    prometheus: Address | None = None
    state: Address | None = None
    token: str | None = field(default=None, repr=False)
    mask: tuple[str, ...] = ()
    messages: bool = True
