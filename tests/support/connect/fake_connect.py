"""A made-up Kafka Connect cluster with one connector that runs and one that failed: it keeps what it is told to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from fake_status import trace
from json_server import JsonAnswers, serving

Json = dict[str, Any]
STATES = {"pause": "PAUSED", "resume": "RUNNING", "stop": "STOPPED", "restart": "RUNNING"}
CONFIG = {
    "connector.class": "com.scylladb.cdc.debezium.connector.ScyllaConnector",
    "scylla.cluster.ip.addresses": "scylla-1:9042",
    "scylla.table.names": "shop.orders",
    "database.password": "secret-of-the-test",
    "topic.prefix": "shop",
    "errors.deadletterqueue.topic.name": "shop.orders.dead",
}
WORKER = "10.0.0.7:8083"


def connector(name: str, *, failure: str = "") -> Json:
    task = {"id": 0, "state": "FAILED" if failure else "RUNNING", "worker_id": WORKER}
    status = {
        **{"name": name, "type": "source", "connector": {"state": "RUNNING", "worker_id": WORKER}},
        "tasks": [task | ({"trace": failure} if failure else {}), {**task, "id": 1, "state": "RUNNING"}],
    }
    offset = {"partition": {"server": "shop", "vnode": 7}, "offset": {"generation": 1_795_000_000, "at": 1_795_371_899}}
    return {"status": status, "info": {"type": "source", "config": CONFIG}, "offsets": {"offsets": [offset]}}


@contextmanager
def cluster(text: str) -> Iterator[str]:
    """The address of the cluster; `text` is a part of the error, and of a configuration."""
    connectors = {"orders-source": connector("orders-source"), "returns": connector("returns", failure=trace(text))}
    connectors["returns"]["info"] = {"type": "source", "config": {**CONFIG, "description": text}}

    class Answer(JsonAnswers):
        def do_GET(self) -> None:
            _, _, *rest = urlsplit(self.path).path.split("/")
            if not rest:
                self.answered(
                    {name: {"status": one["status"], "info": one["info"]} for name, one in connectors.items()}
                )
            elif rest[0] in connectors:
                one = connectors[rest[0]]
                self.answered({**one, "config": one["info"]["config"]}[rest[1]])
            else:
                self.answered({"error_code": 404, "message": f"no connector {rest[0]}"}, 404)

        def do_PUT(self) -> None:
            _, _, name, action = urlsplit(self.path).path.split("/")
            status = connectors[name]["status"]
            for part in (status["connector"], *status["tasks"]):
                part["state"] = STATES[action]
                part.pop("trace", None)
            if action == "stop":
                status["tasks"] = []
            self.answered({}, 202)

        do_POST = do_PUT

    with serving(Answer) as address:
        yield f"http://{address}"
