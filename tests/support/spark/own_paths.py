"""Loading a pipeline's file adds its folder to Python's path: restores it for each test."""

from __future__ import annotations

import os
import sys

import pytest

from penstock.spark_runtime.fork_client import FOLDERS


@pytest.fixture(autouse=True)
def own_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDERS, os.environ.get(FOLDERS, ""))
    monkeypatch.setattr(sys, "path", list(sys.path))
