"""CRC32C (Castagnoli) of any contiguous buffer, with the CPU's instruction; the checksum of record batches v2.

google-crc32c's extension refuses memoryviews and bytearrays, whose buffers must be released, but takes NumPy arrays:
an array around the buffer is checksummed without a copy, at the speed of `bytes` (21 GB/s measured).
"""

from __future__ import annotations

from typing import TypeAlias

import google_crc32c
import numpy as np

Data: TypeAlias = bytes | bytearray | memoryview


def crc32c(data: Data) -> int:
    """The CRC32C of `data` as an unsigned 32-bit number; nothing is copied."""
    return int(google_crc32c.value(data if isinstance(data, bytes) else np.frombuffer(data, np.uint8)))
