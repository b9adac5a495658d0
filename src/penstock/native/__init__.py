"""The base of compiled loops: how they are compiled and cached, and steps that they share; knows no other system."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
