"""What the console asks of other servers: Kafka Connect, `penstock state serve`, Prometheus, and `penstock ingest`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from console_process import Answers, ConsoleProcess, console, http_server, status
from waiting import PATIENCE, until

from penstock.serve.http_client import MOST

SECRETS = {
    "database.password": "s3cret-1",
    "sasl.jaas.config": 'org.apache PlainLoginModule required password="s3cret-2";',
    "transforms.x.api.key": "s3cret-3",
    "connection.url": "postgresql://user:s3cret-4@db:5432/shop",
    "ssl.keystore.password": "s3cret-5",
    "schema.registry.url": "http://one:8081,http://two:8081?token=s3cret-6",
    "registry.passcode": "s3cret-7",
}
SHOWN = {"basic.auth.credentials.source": "USER_INFO", "transforms.token.field": "id"}
"""They only sound secret."""
TRACE = "java.lang.RuntimeException: <b>no</b>\n\tat Task.poll(Task.java:7)"


@dataclass
class Cluster:
    """A Kafka Connect with one connector, `cdc`; an action shows in its status at the second look."""

    states: list[str]
    busy: int = 0

    def pages(self) -> dict[str, Any]:
        own = "/connectors/cdc"
        return {
            "GET /connectors?expand=status&expand=info": self.listed,
            f"GET {own}/status": self.status,
            f"GET {own}/config": {"name": "cdc", "email": "ann@example.com", **SHOWN, **SECRETS},
            f"GET {own}/offsets": {"offsets": [{"partition": {"table": "a"}, "offset": {"at": 1}}]},
            f"PUT {own}/pause": lambda: self.change("PAUSED"),
            f"PUT {own}/resume": lambda: self.change("FAILED"),
            f"PUT {own}/stop": lambda: self.change("STOPPED"),
            f"POST {own}/restart?includeTasks=true&onlyFailed=false": lambda: self.change("RESTARTING", "RUNNING"),
        }

    def change(self, *states: str) -> Any:
        if self.busy:
            self.busy -= 1
            return 409, {"message": "rebalancing"}
        self.states += states
        return 202, b""

    def status(self) -> Any:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        task = {"id": 0, "state": state, "worker_id": "w:1"} | ({"trace": TRACE} if state == "FAILED" else {})
        connector = {"state": "RUNNING" if state == "FAILED" else state, "worker_id": "w:1"}
        return {"name": "cdc", "type": "source", "connector": connector, "tasks": [task]}

    def listed(self) -> Any:
        config = {"config": {"errors.deadletterqueue.topic.name": "cdc.dead", **SECRETS}}
        return {"cdc": {"status": self.status(), "info": config}}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[ConsoleProcess, Cluster, Answers]]:
    """A console with two clusters, the second of which does not answer."""
    cluster = Cluster(["FAILED"])
    with http_server(cluster.pages()) as connect:
        options = [
            "--allow-actions",
            "--mask",
            "email",
            "--connect",
            connect.url,
            "--connect",
            "http://u:pw@127.0.0.1:1",
        ]
        with console(tmp_path, *options) as made:
            yield made, cluster, connect
            assert "pw" not in made.errors.read_text()


def test_connectors_of_all_clusters_are_listed_with_their_traces(site: tuple[ConsoleProcess, Cluster, Answers]) -> None:
    made, _, connect = site
    here, away = made.get("/api/connectors")
    assert (here["cluster"], here["name"], here["type"], here["url"]) == (0, "cdc", "source", connect.url)
    assert here["tasks"] == [{"id": 0, "state": "FAILED", "worker": "w:1", "trace": TRACE}]
    assert here["letters"] == "cdc.dead"
    assert (away["cluster"], away["name"], away["url"]) == (1, None, "http://127.0.0.1:1")
    assert away["error"] == "Connection refused"


def test_a_large_configuration_does_not_hide_the_connectors(site: tuple[ConsoleProcess, Cluster, Answers]) -> None:
    made, cluster, connect = site
    large, whole = b'"' + b"x" * MOST + b'"', "GET /connectors?expand=status&expand=info"
    # A cluster of Penstock leaves out what is too large, and says why.
    connect.pages[whole] = lambda: {"cdc": {"status": cluster.status(), "error": "its configuration is not listed"}}
    here, _ = made.get("/api/connectors")
    assert (here["name"], here["problem"], len(here["tasks"])) == ("cdc", "its configuration is not listed", 1)
    # Another one sends it, and is asked for less.
    connect.pages |= {whole: large, "GET /connectors/cdc/config": large}
    connect.pages["GET /connectors?expand=status"] = lambda: {"cdc": {"status": cluster.status()}}
    here, _ = made.get("/api/connectors")
    assert (here["name"], len(here["tasks"]), here["letters"]) == ("cdc", 1, None)
    assert (
        f"its configuration is not listed: with those of all connectors the answer has more than {MOST} bytes"
        in (here["problem"])
    )
    found = made.get("/api/connectors/0/cdc")
    assert found["config"] == {} and "its configuration is not shown: the answer has more than" in found["problem"]
    assert found["offsets"] and found["state"] == "RUNNING"
    # Even the states are too much.
    connect.pages |= {"GET /connectors?expand=status": large, "GET /connectors": ["cdc"]}
    here, _ = made.get("/api/connectors")
    assert (here["name"], here["state"]) == ("cdc", "UNKNOWN") and "its state is not listed" in here["problem"]


@pytest.mark.slow
def test_failing_tasks_and_clusters_are_problems_while_a_page_is_open(
    site: tuple[ConsoleProcess, Cluster, Answers],
) -> None:
    made, _, connect = site
    with requests.get(f"{made.url}/api/events", stream=True, timeout=PATIENCE):
        found = until(lambda: made.get("/api/overview")["problems"], "problems")
    assert [(one["severity"], one["what"]) for one in found] == [
        ("failed", "task 0 of connector cdc failed: java.lang.RuntimeException: <b>no</b>"),
        ("failed", "Kafka Connect does not answer: Connection refused"),
    ]
    assert [one["where"] for one in found] == [connect.url, "http://127.0.0.1:1"]
    assert [one["cluster"] for one in found] == [0, 1]


def test_a_connector_that_leaves_out_most_records_is_a_problem(tmp_path: Path) -> None:
    """Its state is RUNNING: what it does is in the status of its worker, which the console knows as a run."""
    task = {"id": 0, "state": "RUNNING", "records_total": 58, "dead_letters_total": 58}
    run = status("w:1", kind="connect", queries=[], connectors=[{"name": "cdc", "state": "RUNNING", "tasks": [task]}])
    with ExitStack() as stack:
        connect = stack.enter_context(http_server(Cluster(["RUNNING"]).pages()))
        worker = stack.enter_context(http_server({"GET /status": run}))
        made = stack.enter_context(console(tmp_path, "--connect", connect.url, "--target", worker.url))
        (problem,) = made.get("/api/overview")["problems"]
        assert (problem["severity"], problem["query"]) == ("failed", "cdc")
        assert problem["what"] == "task 0 of connector cdc has left out 58 of 58 records"
        for found in (made.get("/api/connectors")[0], made.get("/api/connectors/0/cdc")):
            (shown,) = found["tasks"]
            counts = shown["records_total"], shown["dead_letters_total"], shown["mostly_bad"]
            assert (shown["state"], counts) == ("RUNNING", (58, 58, True))
        task |= {"records_total": 200}
        until(lambda: not made.get("/api/overview")["problems"], "end of the problem")


def test_two_groups_with_a_connector_of_one_name_are_two_problems(tmp_path: Path) -> None:
    """One of them is known from its worker, too, and stands there once."""
    task = {"id": 0, "state": "FAILED", "trace": TRACE}
    run = status("w:1", kind="connect", queries=[], connectors=[{"name": "cdc", "state": "RUNNING", "tasks": [task]}])
    with ExitStack() as stack:
        own, other = Cluster(["FAILED"]).pages(), Cluster(["FAILED"]).pages()
        listed = other["GET /connectors?expand=status&expand=info"]
        other["GET /connectors?expand=status&expand=info"] = lambda: json.loads(
            json.dumps(listed()).replace("w:1", "v:1")
        )
        urls = [stack.enter_context(http_server(pages)).url for pages in (own, other)]
        worker = stack.enter_context(http_server({"GET /status": run}))
        options = [word for url in urls for word in ("--connect", url)]
        made = stack.enter_context(console(tmp_path, *options, "--target", worker.url))
        with requests.get(f"{made.url}/api/events", stream=True, timeout=PATIENCE):
            found = until(lambda: _problems_at(made, urls[1]), "problem of the other group")
    assert sorted(one["where"] for one in found) == sorted([worker.url, urls[1]])


def _problems_at(made: ConsoleProcess, url: str) -> Any:
    found = made.get("/api/overview")["problems"]
    return found if url in [one["where"] for one in found] else None


def test_a_connector_is_shown_without_its_secrets(site: tuple[ConsoleProcess, Cluster, Answers]) -> None:
    made, _, _ = site
    found = made.get("/api/connectors/0/cdc")
    assert set(found["config"]) == {"name", "email", *SHOWN, *SECRETS}
    assert found["config"].items() >= SHOWN.items()
    assert (
        found["config"]["name"] == "cdc" and found["config"]["connection.url"] == "postgresql://[hidden]@db:5432/shop"
    )
    assert "s3cret" not in json.dumps(found)
    assert found["offsets"] == [{"partition": {"table": "a"}, "offset": {"at": 1}}]
    told = made.get("/api/connectors/0/none", 404)
    assert "not here" in told["error"] and told["next"]
    assert "there is no Connect cluster 5" in made.get("/api/connectors/5/cdc", 404)["error"]
    assert made.get("/api/connectors/1/cdc", 503)["error"] == "Connection refused"


def test_an_action_waits_for_its_result_and_tells_it(site: tuple[ConsoleProcess, Cluster, Answers]) -> None:
    made, cluster, connect = site
    cluster.states, cluster.busy = ["RUNNING"], 2
    path = "/api/connectors/0/cdc"
    told = made.post(f"{path}/pause")
    assert (told["done"], told["connector"]["state"]) == (True, "PAUSED")
    told = made.post(f"{path}/restart")
    assert (told["done"], told["connector"]["tasks"][0]["state"]) == (True, "RUNNING")
    # A task that fails again is the result of the action, with its trace.
    told = made.post(f"{path}/resume")
    assert (told["done"], told["connector"]["tasks"][0]["trace"]) == (True, TRACE)
    assert made.post(f"{path}/stop")["connector"]["state"] == "STOPPED"
    asked = [connect.asked.get()[0] for _ in range(connect.asked.qsize())]
    assert [one.partition(" ")[0] for one in asked if "GET" not in one] == ["PUT"] * 3 + ["POST"] + ["PUT"] * 2
    assert "there is no action delete" in made.post(f"{path}/delete", status=404)["error"]


def test_odd_answers_of_a_cluster_are_no_failure_of_the_console(tmp_path: Path) -> None:
    pages = {
        "GET /connectors?expand=status&expand=info": {"a": 5, "b": {"status": {"connector": {"state": 7}}}},
        "GET /connectors/x/status": [1],
        "GET /connectors/x/config": "text",
    }
    with http_server(pages) as connect, console(tmp_path, "--connect", connect.url) as made:
        assert made.get("/api/connectors") == []
        found = made.get("/api/connectors/0/x")
        assert (found["state"], found["config"], found["offsets"]) == ("UNKNOWN", {}, None)


def test_state_comes_from_a_state_server_and_is_masked(tmp_path: Path) -> None:
    rows = [{"key": "ann", "value": {"count": 3, "email": "ann@example.com"}}]
    pages = {
        "GET /state": [{"name": "orders/counts", "batch": 4, "age_seconds": 1.5}],
        "GET /state/orders/counts": {"name": "orders/counts", "batch": 4, "rows": rows, "more": False},
        "GET /state/none": (404, {"error": "there is no state none", "next": "choose"}),
    }
    with http_server(pages) as server, console(tmp_path, "--state", server.url, "--mask", "email") as made:
        assert made.get("/api/state") == [
            {"name": "orders/counts", "batch": 4, "age_seconds": 1.5, "run": "--state"},
        ]
        found = made.get('/api/state/orders%2Fcounts?key={"user":"a%26b"}')
        assert found["rows"] == [{"key": "ann", "value": {"count": 3, "email": "[hidden]"}}]
        asked = [server.asked.get()[0] for _ in range(server.asked.qsize())][-1]
        assert parse_qs(urlsplit(asked.split()[1]).query)["key"] == ['{"user":"a&b"}']
        assert made.get("/api/state/none", 404)["error"] == "there is no state none"


def test_charts_from_prometheus_are_fixed_queries(tmp_path: Path) -> None:
    values = [[1795574000, "1.5"], [1795574015, "NaN"], [1795574030, "+Inf"], [1795574045, "2"]]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": values}]}}
    with ExitStack() as stack:
        prometheus = stack.enter_context(http_server({"GET /api/v1/query_range": answer}))
        made = stack.enter_context(console(tmp_path, "--prometheus", prometheus.url))
        found = made.get('/api/history?pipeline=a"}) or vector(1) %23\\&query=q&range=6h')
        assert found["series"]["lag_seconds"] == [[1795574000, 1.5], [1795574045, 2]]
        assert (found["range"], found["step"]) == ("6h", 90)
        asked = [prometheus.asked.get()[0] for _ in range(prometheus.asked.qsize())]
        queries = [parse_qs(urlsplit(one.split()[1]).query)["query"][0] for one in asked]
        assert len(queries) == len(found["series"])
        assert 'max(penstock_source_lag_seconds{pipeline="a\\"}) or vector(1) #\\\\",query="q"})' in queries
        prometheus.pages["GET /api/v1/query_range"] = {"status": "error", "error": "too many points"}
        assert "too many points" in made.get("/api/history?pipeline=a", 503)["error"]
        wrong: list[Any] = [{"status": "success"}, [], {"status": "success", "data": {"result": [{"values": 5}]}}]
        for odd in wrong:
            prometheus.pages["GET /api/v1/query_range"] = odd
            assert made.get("/api/history?pipeline=a", 503)["error"] == "the answer is not one of Prometheus"


def test_servers_of_ingest_are_listed(tmp_path: Path) -> None:
    told = {
        "status": "ok",
        "requests_total": 7,
        "spool": None,
        "odd": {"x": 1},
        "statuses": {"202": 5, "404": 2, "x": "y"},
    }
    with ExitStack() as stack:
        run = status("web", kind="ingest", queries=[], ingest=told)
        server = stack.enter_context(http_server({"GET /status": run}))
        made = stack.enter_context(console(tmp_path, "--target", server.url))
        (found,) = made.get("/api/ingest")
        assert (found["run"], found["status"], found["requests_total"], found["reachable"]) == ("web", "ok", 7, True)
        assert "odd" not in found and found["statuses"] == {"202": 5, "404": 2}
