"""Tests that load pipelines' files."""

from own_paths import own_paths as own_paths
