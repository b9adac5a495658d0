"""Few files use a part of Spark that is not public, and docs/spark.md lists them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRIVATE = re.compile(
    r"\._j(?:vm|df|sq|sparkSession|c|rdd)\b|\._gateway\b|pyspark\.sql\.pandas\.types|pyspark\.sql\.worker"
    r"|pyspark\.(?:daemon|worker)\b|from pyspark import (?:cloudpickle|daemon)\b"
)
ROOMS = re.compile("spark_runtime/|checkpoint/|query/real_time.py")
"""Where all that a new release of Spark may change is."""
SOURCE = ROOT / "src/penstock"
USING = {str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if PRIVATE.search(file.read_text())}


def test_all_of_it_is_in_these_rooms() -> None:
    assert {file for file in USING if not ROOMS.match(file)} == set()


def test_the_page_names_the_files_as_they_are() -> None:
    table = [line for line in (ROOT / "docs/spark.md").read_text().splitlines() if line.startswith("|")]
    named = {name for line in table for name in re.findall(r"`([\w/]+\.py)`", line)}
    assert named == USING
