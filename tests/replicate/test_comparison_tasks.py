"""The tasks of a comparison run side by side."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

from pyspark.sql import SparkSession
from waiting import PATIENCE

from penstock.replicate.comparison_tasks import in_tasks


def test_tasks_run_at_the_same_time(spark: SparkSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        port = server.getsockname()[1]

        def let_go_in_pairs() -> None:
            for _ in range(2):
                pair = [server.accept()[0] for _ in range(2)]
                for connection in pair:
                    connection.sendall(b"!")
                    connection.close()

        def work(items: list[int]) -> Iterator[tuple[int, bytes]]:
            for item in items:
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    yield item, connection.recv(1)

        pairs = threading.Thread(target=let_go_in_pairs)
        pairs.start()
        assert sorted(in_tasks(spark, work, range(4))) == [(item, b"!") for item in range(4)]
        pairs.join()
