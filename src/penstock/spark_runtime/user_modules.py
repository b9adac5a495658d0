"""Where users' own modules are found: behind those of Python and of all packages, also in Spark's Python processes.

A folder at the front of the path, as PYTHONPATH has it, lets a user's `numbers.py` stand for Python's module in the
imports of PySpark and of Penstock. So the folders are in a variable of their own, which the processes read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from penstock.spark_runtime.fork_client import FOLDERS


def add_folder(folder: str) -> None:
    """Let this process, and the Python processes of a session that it starts, import modules from a folder."""
    folders = [each for each in os.environ.get(FOLDERS, "").split(os.pathsep) if each and each != folder]
    os.environ[FOLDERS] = os.pathsep.join([folder, *folders])
    import_from(os.environ)


def import_from(environment: Mapping[str, str]) -> None:
    """Let this process import modules from the folders of an environment."""
    folders = environment.get(FOLDERS, "").split(os.pathsep)
    sys.path += [folder for folder in folders if folder and folder not in sys.path]
