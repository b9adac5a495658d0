"""Checks a producer's options when it is made; the errors say what is valid."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from penstock.wire.records.batch_header import HEADER_SIZE
from penstock.wire.records.compression import MAX_SIZE, codec_number, require_level
from penstock.wire.records.partitioner import Partitioner, partitioner_of

Acks = Literal[0, 1, "all"]


@dataclass(frozen=True)
class Delivery:
    """How batches are delivered; times in seconds, sizes in bytes."""

    acks: int
    idempotent: bool
    in_flight: int
    request_size: int
    request_timeout: float
    pauses: tuple[float, float]
    compression_level: int | None = None
    """The level for batches that are compressed again after a split."""


def require_delivery(acks: Acks, idempotent: bool | None, in_flight: int, transactional_id: str | None) -> None:
    """Raises ValueError unless these options fit together."""
    if acks not in (0, 1, "all"):
        raise ValueError(f"acks must be 0, 1 or 'all', not {acks!r}")
    if idempotent and acks != "all":
        raise ValueError("an idempotent producer needs acks='all'")
    idempotent = acks == "all" and idempotent is not False
    if in_flight < 1 or (in_flight > 5 and idempotent):
        raise ValueError("in_flight must be 1 to 5: brokers remember five batches of an idempotent producer")
    if transactional_id is not None and not idempotent:
        raise ValueError("a transactional producer must be idempotent, with acks='all'")


def require_records(
    compression: str, level: int | None, partitioner: str | Partitioner, batch_size: int, buffer_memory: int
) -> None:
    """Raises ValueError unless record batches can be made with these options."""
    require_level(codec_number(compression), level)
    partitioner_of(partitioner)
    if not HEADER_SIZE < batch_size <= MAX_SIZE:
        raise ValueError(f"batch_size must be {HEADER_SIZE + 1} to {MAX_SIZE} bytes, not {batch_size}")
    if buffer_memory < 1:
        raise ValueError(f"buffer_memory must be at least 1 byte, not {buffer_memory}")


def require_times(linger: timedelta, **timeouts: timedelta) -> None:
    """Raises ValueError for a time that is not positive; only `linger` may be zero."""
    if linger < timedelta(0):
        raise ValueError(f"linger must be 0 or more, not {linger}")
    for name, timeout in timeouts.items():
        if timeout <= timedelta(0):
            raise ValueError(f"{name} must be more than 0, not {timeout}")
