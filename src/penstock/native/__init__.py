"""What loops in machine code stand on: how they are compiled and kept, and steps that they share. Knows no system."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
