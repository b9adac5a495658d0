"""Loading a pipeline's file adds its folder to Python's path: restores it for each test."""

from __future__ import annotations

import os
import sys

import pytest


@pytest.fixture(autouse=True)
def own_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr(sys, "path", list(sys.path))
