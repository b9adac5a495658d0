"""docs/spark.md lists every file that uses a part of Spark that is not public."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRIVATE = re.compile(
    r"\._j(?:vm|df|sq|sparkSession|c|rdd)\b|\._gateway\b|pyspark\.sql\.pandas\.types|pyspark\.sql\.worker"
    r"|pyspark\.(?:daemon|worker)\b|from pyspark import (?:cloudpickle|daemon)\b"
)


def test_the_page_names_the_files_as_they_are() -> None:
    source = ROOT / "src/penstock"
    using = {str(file.relative_to(source)) for file in source.rglob("*.py") if PRIVATE.search(file.read_text())}
    table = [line for line in (ROOT / "docs/spark.md").read_text().splitlines() if line.startswith("|")]
    named = {name for line in table for name in re.findall(r"`([\w/]+\.py)`", line)}
    assert named == using
