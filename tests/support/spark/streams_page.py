"""The lines of docs/streams.md, and what their names stand for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, functions as F

from penstock import join, kafka, table, window
from penstock.table import Table

PAGE = (Path(__file__).parents[3] / "docs/streams.md").read_text()
LINES = re.findall(r"^\| (.+?) \| `([^`]+)` \|$", PAGE.split("| Kafka Streams | here |")[1].split("\n\n")[0], re.M)


def names(
    clicks: DataFrame, people: DataFrame, phones: DataFrame, places: DataFrame, orders: DataFrame
) -> dict[str, Any]:
    """The names that the lines use."""

    # Inside, so that they are pickled as they are: workers do not know this module.
    def plus(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        return {"total": total["total"] + row["balance"]}

    def minus(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        return {"total": total["total"] - row["balance"]}

    return {
        **{"F": F, "join": join, "kafka": kafka, "table": table, "window": window, "Table": Table},
        **{"clicks": clicks, "orders": orders, "plus": plus, "minus": minus},
        "users": Table(people, key=("user",), version="v"),
        "phones": Table(phones, key=("user",), version="pv"),
        "cities": Table(places, key=("name",), version="cv"),
    }
