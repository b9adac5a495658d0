"""Builds the plugin for Apache Cassandra into wheels and source distributions, and builds none without it.

A checkout does not have the plugin's jar, and who installs a wheel that lacks it cannot make one. A source distribution
has it, so that a wheel is built from it without Java and without a network.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PluginHook(BuildHookInterface[Any]):
    """What hatchling runs before it packs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # A checkout that is installed in place builds the plugin afterwards, by `make`.
        if version == "editable":
            return
        script = Path(self.root) / "cassandra/build.py"
        made = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
        if made.returncode:
            sys.exit(
                f"No {self.target_name}: its plugin for Apache Cassandra cannot be built.\n{made.stdout}{made.stderr}"
            )
