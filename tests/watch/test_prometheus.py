"""A real Prometheus scrapes `penstock run` and `penstock ingest`, loads the rules, and answers the dashboards."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import yaml
from ingest_server import ingest
from kafka_topics import new_topics
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from promtool import Prometheus, program, prometheus, promtool
from starlette.applications import Starlette
from waiting import PATIENCE, patience, until

from penstock.connect.worker.spark_lines import SparkLines
from penstock.connect.worker.status import TaskMetrics
from penstock.ingest.ingest_metrics import _now
from penstock.ingest.kafka_store import Facts
from penstock.local.services import Services
from penstock.metrics.delays import SinkCounts
from penstock.watch.alert_rules import ALERTS, RECORDINGS, Alert, Recording, rules_file
from penstock.watch.dashboards import dashboards
from penstock.watch.delivery_meter import DeliveryMeter
from penstock.watch.meters import Meters
from penstock.watch.program import exposition
from penstock.watch.query_meter import LookupMeter, QueryMeter, SinkMeter, SourceMeter, StateMeter
from penstock.watch.query_metrics import QueryMetrics
from penstock.watch.served_app import HttpMeter
from penstock.wire import BlockingProducer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PIPELINE = """
import penstock as ps
from penstock import kafka, window

@ps.pipeline(every="1 second", target="20 seconds")
def pages(spark):
    schema = "page string NOT NULL, ts timestamp"
    clicks = kafka.read(spark, "{clicks}", servers="{kafka}", schema=schema, at="ts", late="0 seconds", name="clicks")
    seconds = window.tumbling(
        clicks.where("problem IS NULL"), "1 second", at="ts", key="page", name="seconds", n="count(*)"
    )
    counts = kafka.sink("{counts}", servers="{kafka}", key="page")
    return [
        ps.write(seconds.select("page", "window_end", "n"), counts, name="counts"),
        ps.write(clicks, kafka.dead_letters("{dead}", servers="{kafka}"), name="dead"),
    ]
"""
SCHEMA = {"type": "object", "required": ["page"]}
EVENTS = 20
START = patience(180)
"""Seconds for the start of Spark and a first batch on a busy machine."""
RULES: tuple[Recording | Alert, ...] = (*RECORDINGS, *ALERTS)
URL = re.compile(r"metrics at (\S+)/metrics")
NAME = re.compile(r"\bpenstock_[a-z0-9_]+\b")
METRIC = re.compile(r"`(penstock_[a-z0-9_]+[a-z0-9])(?:\{[^`]*)?`")
SELECTOR = re.compile(r"\b(penstock_[a-z0-9_]+)\{([^}]*)\}")
LABEL = re.compile(r"(\w+)\s*[=!]")
BY = re.compile(r"\b(?:by|on) \(([^)]*)\)")
OF_TARGET = {"job", "instance"}
"""Labels that Prometheus adds."""


@dataclass(frozen=True)
class Site:
    """Running commands: the addresses of their metrics by job, and the server that scrapes them."""

    targets: Mapping[str, str]
    prometheus: Prometheus

    def scrape(self, job: str) -> str:
        return requests.get(f"http://{self.targets[job]}/metrics", timeout=PATIENCE).text


@dataclass(frozen=True)
class Run:
    """A running `penstock run`; `target` is the address of its metrics."""

    target: str
    process: subprocess.Popen[bytes]
    log: Path

    def runs(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return True


@contextmanager
def pipeline(folder: Path, text: str) -> Iterator[Run]:
    """A pipeline that runs until the end of the block."""
    (folder / "pages.py").write_text(text)
    command = [sys.executable, "-m", "penstock", "run", "pages.py:pages", "--metrics", "127.0.0.1:0", "--log", "json"]
    log = folder / "run.log"
    with log.open("w") as lines, subprocess.Popen(command, cwd=folder, stderr=lines) as process:
        try:
            found = until(lambda: URL.search(log.read_text()) or process.poll(), "metrics of penstock run")
            assert isinstance(found, re.Match), log.read_text()
            yield Run(found[1].removeprefix("http://"), process, log)
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def site(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    program("prometheus")
    folder, kafka = tmp_path_factory.mktemp("prometheus"), services.kafka
    clicks, counts, dead = topics = [f"{name}-{os.getpid()}" for name in ("clicks", "counts", "dead")]
    (folder / "rules.yml").write_text(rules_file())
    text = PIPELINE.format(clicks=clicks, counts=counts, dead=dead, kafka=kafka)
    with ExitStack() as opened:
        opened.enter_context(pytest.MonkeyPatch.context()).setenv("PENSTOCK_RUNS", str(folder / "runs"))
        opened.enter_context(new_topics(kafka, topics, 2))
        run = opened.enter_context(pipeline(folder, text))
        (folder / f"{clicks}.json").write_text(json.dumps(SCHEMA))
        places = "--schemas", folder, "--spool", folder / "spool"
        server = opened.enter_context(ingest(folder, "--servers", kafka, "--topics", clicks, *places))
        targets = {"penstock": run.target, "penstock-ingest": server.url.removeprefix("http://")}
        listed = {job: [target] for job, target in targets.items()}
        scraper = opened.enter_context(prometheus(folder, listed, [folder / "rules.yml"]))
        _send(server.url, kafka, clicks)
        until(lambda: run.runs() and scraper.value("sum(penstock_delay_seconds_count) > 0"), "delays", START)
        until(lambda: scraper.query("penstock_query_watermark_timestamp_seconds"), "a watermark")
        until(lambda: scraper.query("penstock_state_commit_seconds_total"), "a commit of state")
        yield Site(targets, scraper)


def _send(url: str, kafka: str, topic: str) -> None:
    """Events over some seconds of event time, one that is not valid, and a record that is not JSON."""
    assert requests.post(f"{url}/events/{topic}", json={}, timeout=PATIENCE).status_code == 400
    for number in range(EVENTS):
        event = {"page": "home", "ts": (datetime.now(UTC) - timedelta(seconds=EVENTS - number)).isoformat()}
        assert requests.post(f"{url}/events/{topic}", json=event, timeout=PATIENCE).status_code < 300
    with BlockingProducer(kafka) as producer:
        producer.send(topic, b"{").result()


# What dashboards, rules and documents use.


def used() -> dict[str, set[str]]:
    """The labels with which each metric is used."""
    found: dict[str, set[str]] = defaultdict(set)
    boards = [json.loads(board.text()) for board in dashboards()]
    expressions = [one.expression for one in RULES]
    for board in boards:
        targets = [target for panel in board["panels"] for target in panel.get("targets", ())]
        expressions += [target["expr"] for target in targets]
        expressions += [one["query"]["query"] for one in board["templating"]["list"][1:]]
    for text in expressions:
        grouped = {label.strip() for labels in BY.findall(text) for label in labels.split(",")} - {"le"}
        names = set(NAME.findall(re.sub(r"\w+:penstock_\w+:\w+", "", text)))
        for name in names:
            # A group by labels is that of the only metric of an expression, or of all of them.
            found[name] |= grouped
        for name, labels in SELECTOR.findall(text):
            found[name] |= set(LABEL.findall(labels))
    return {name: labels - OF_TARGET for name, labels in found.items()}


def documented() -> set[str]:
    """The metrics that the documents name; a histogram is named without its suffix."""
    pages = [page.read_text() for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"))]
    return {name for page in pages for name in METRIC.findall(page)}


def samples(text: str) -> dict[str, set[str]]:
    """The labels of each sample's name in a scrape."""
    found: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return found


RARE = {
    "penstock_connector_tasks",
    "penstock_dead_letters_total",
    "penstock_ingest_waiting_bytes",
    "penstock_jvm_memory_max_bytes",
    "penstock_jvm_memory_used_bytes",
    "penstock_global_table_stale_seconds",
    "penstock_lookup_hits_total",
    "penstock_lookup_rows_total",
    "penstock_lookup_wait_seconds_total",
    "penstock_sink_failures_total",
    "penstock_source_bad_records_total",
    "penstock_source_retention_left_seconds",
    "penstock_state_disk_bytes",
}
"""Metrics that need a fault, a lookup, a retention or a connector, which these commands need not have."""


def rare() -> str:
    """A scrape with them, of meters that were filled by hand."""
    meters = Meters()
    meter = QueryMeter("orders", "orders", "1 second", 1.0, 60.0)
    meters.pipeline("orders", timedelta(seconds=1)).queries["orders"] = meter
    source = SourceMeter("topic clicks", "topic:clicks", bad=Counter({"not JSON": 1}), retention=3600.0)
    source.lag.planned(0.5, {"clicks": {"0": 1}}, {"clicks": {"0": 1}})
    source.lag.planned(1.0, {"clicks": {"0": 1}}, {"clicks": {"0": 2}})
    counts = SinkCounts(failures={"MessageTooLarge": 1}, letters={"too_large": 1})
    meter.sources = [source]
    meter.sinks = [SinkMeter("topic out", "topic:out", counts=counts)]
    meter.states = {"counts": StateMeter(disk=1000)}
    meter.tables = {"people": 1.5}
    meter.lookups = {"persons": LookupMeter(rows=2, hits=1, wait=0.5)}
    meters.jvm = 1, 2
    waits = Facts(True, "ok", "", 10, {"clicks": 5})
    now: Any = SimpleNamespace(bytes=0, open=0, refused=0)
    server = Made(_now(now, now, waits))
    worker: Any = SimpleNamespace(here=lambda: [{"name": "shop", "tasks": []}])
    return exposition([QueryMetrics(meters), TaskMetrics(worker), server]).decode()


class Made(Collector):
    """Metrics that are there."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def test_each_metric_that_is_used_is_in_a_scrape_with_its_labels(site: Site) -> None:
    known = samples(rare())
    for job in site.targets:
        for name, labels in samples(site.scrape(job)).items():
            known[name] |= labels
    assert {name: labels - known[name] for name, labels in used().items() if name not in known} == {}
    assert {name: labels - known[name] for name, labels in used().items() if labels - known[name]} == {}
    real = {name for job in site.targets for name in samples(site.scrape(job))}
    assert set(used()) - real <= RARE


def test_the_documents_name_metrics_that_exist(site: Site) -> None:
    known = {name for text in (rare(), *map(site.scrape, site.targets)) for name in samples(text)}
    for collector in (HttpMeter(Starlette()), DeliveryMeter(), SparkLines()):
        for family in collector.collect():
            known.add(f"{family.name}_total" if family.type == "counter" else family.name)
    known |= {name.removesuffix("_bucket") for name in known}
    assert len(documented()) > 40
    assert documented() - known - {"penstock_demo", "penstock_applied"} == set()


def test_legends_have_labels_that_their_expressions_keep() -> None:
    for board in dashboards():
        for panel in json.loads(board.text())["panels"]:
            for target in panel.get("targets", ()):
                shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                kept = [set(map(str.strip, labels.split(","))) for labels in BY.findall(target["expr"])]
                assert all(shown <= labels for labels in kept), panel["title"]


def test_prometheus_loads_the_rules_and_answers_each_panel(site: Site) -> None:
    groups = until(lambda: _evaluated(site.prometheus), "evaluated rules")
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {one.name for one in RULES}
    assert {rule["health"]: rule.get("lastError") for rule in rules} == {"ok": None}
    # The rate of a metric has no value before it was scraped twice.
    with suppress(AssertionError):
        until(lambda: _unanswered(site.prometheus) <= RARE, "answers")
    assert _unanswered(site.prometheus) <= RARE


def _unanswered(server: Prometheus) -> set[str]:
    """The metrics of the panels' expressions that have no value now; the panel's title if it uses none."""
    empty = set()
    for board in dashboards():
        for panel in json.loads(board.text())["panels"]:
            for target in panel.get("targets", ()):
                if not server.query(_with_values(target["expr"])):
                    empty |= set(NAME.findall(target["expr"])) or {panel["title"]}
    return empty


def _evaluated(server: Prometheus) -> list[dict[str, Any]]:
    """The groups of rules, once each rule has been evaluated."""
    groups: list[dict[str, Any]] = server.get("rules")["groups"]
    return groups if all(rule["health"] != "unknown" for group in groups for rule in group["rules"]) else []


def _with_values(text: str) -> str:
    for name, value in {"$__rate_interval": "30s", "$__range": "5m"}.items():
        text = text.replace(name, value)
    return re.sub(r"\$\w+", ".*", text)


def test_no_alert_fires_for_commands_that_work(site: Site) -> None:
    assert (
        site.prometheus.query('ALERTS{alertstate="firing", alertname!~"PenstockBadRecords|PenstockDeadLetters"}') == []
    )


@pytest.mark.parametrize("job", ["penstock", "penstock-ingest"])
def test_promtool_has_nothing_to_say_about_a_scrape(site: Site, job: str) -> None:
    checked = promtool("check", "metrics", given=site.scrape(job))
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_settings_in_the_documents_are_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs/dashboards.md").read_text()
    (text,) = re.findall(r"^```yaml\n(# prometheus\.yml\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    rules = tmp_path / "monitoring/prometheus/penstock-rules.yml"
    rules.parent.mkdir(parents=True)
    rules.write_text(rules_file())
    (tmp_path / "prometheus.yml").write_text(text)
    checked = promtool("check", "config", tmp_path / "prometheus.yml")
    assert checked.returncode == 0, checked.stderr
    assert "1 rule files found" in checked.stdout
    jobs = [one["job_name"] for one in yaml.safe_load(text)["scrape_configs"]]
    assert all(job.startswith("penstock") for job in jobs)
