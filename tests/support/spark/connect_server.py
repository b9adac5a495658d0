"""A Spark Connect server on a port of the loopback address; it ends when its standard input does."""

from __future__ import annotations

import sys
from typing import Any

from penstock.local.ports import HOST
from penstock.spark_runtime.session import end, spark


def main(port: str) -> None:
    conf: dict[str, Any] = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": port,
    }
    session = spark("connect", **conf)
    print("ready", flush=True)
    sys.stdin.read()
    end(session)


if __name__ == "__main__":
    main(*sys.argv[1:])
