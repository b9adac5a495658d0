"""The rules: valid for Prometheus, each alert fires when it should and not when it should not, and says what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from promtool import promtool

from penstock.watch.alert_rules import ALERTS, RECORDINGS, rules_file

ROOT = Path(__file__).parents[2]
QUERY = {"job": "penstock", "pipeline": "orders", "query": "orders"}
ALL = {"instance": "h:1", **QUERY}


def of(metric: str, **more: str) -> str:
    """A series of the query."""
    labels = ", ".join(f'{name}="{value}"' for name, value in {**ALL, **more}.items())
    return f"{metric}{{{labels}}}"


@dataclass(frozen=True)
class Case:
    """Series by name, with a value each minute (`a+bxn`: n more values, each larger by b; `_`: none).

    With `fires` the alert fires at the minute `at`, with these labels and summary; with each of `quiet` it does not.
    """

    fires: dict[str, str]
    quiet: tuple[dict[str, str], ...]
    at: int
    labels: dict[str, str]
    summary: str
    details: str
    more: dict[str, str] = field(default_factory=dict)
    """Series of all cases."""


SOURCE = {**ALL, "source": "topic clicks"}
SINK = {**QUERY, "sink": "topic out", "reason": "too large"}
DELAYS = 'penstock_delay_seconds_bucket{job="penstock", instance="h:1", pipeline="orders", query="orders", sink="out"'
LAG, LEFT = (of(f"penstock_source_{name}_seconds", source="topic clicks") for name in ("lag", "retention_left"))
COMMIT = of("penstock_query_last_commit_timestamp_seconds")
TARGET = of("penstock_query_delay_target_seconds")
STOPPED = of("penstock_query_state", state="stopped")
WATERMARK = of("penstock_query_watermark_timestamp_seconds")
ROWS = of("penstock_query_rows_total")
DISK = of("penstock_state_disk_bytes", operator="counts")
BAD = of("penstock_source_bad_records_total", source="topic clicks", reason="not JSON")
LETTERS = of("penstock_dead_letters_total", sink="topic out", reason="too large")
FAULTS = of("penstock_query_starts_total", reason="fault")
UP = 'up{job="penstock", instance="h:1"}'
BUILD = 'penstock_build_info{job="penstock", instance="h:1", version="0.1.0"}'
SPOOL = 'penstock_ingest_spool_bytes{job="penstock-ingest", instance="h:2"}'
ERRORS = 'penstock_ingest_requests_total{job="penstock-ingest", instance="h:2", topic="clicks", status="503"}'
ANSWERS = 'penstock_ingest_requests_total{job="penstock-ingest", instance="h:2", topic="clicks", status="202"}'
TASKS = 'penstock_connector_tasks{job="penstock", instance="h:1", connector="shop"'

CASES = {
    "PenstockQueryFailed": Case(
        {of("penstock_query_state", state="failed"): "0 0 1x10"},
        ({of("penstock_query_state", state="failed"): "0x10", of("penstock_query_state", state="running"): "1x10"},),
        5,
        {**ALL, "state": "failed"},
        "Query orders of orders has failed",
        "It writes nothing until its cause is removed.",
    ),
    "PenstockQueryWaiting": Case(
        {of("penstock_query_state", state="waiting"): "1x20"},
        (
            {of("penstock_query_state", state="waiting"): "1x8 0x12"},
            {of("penstock_query_state", state="running"): "1x20"},
        ),
        15,
        {**ALL, "state": "waiting"},
        "Query orders of orders has been waiting for 10 minutes",
        "It writes nothing; what it waits for is in its log and in `penstock status`.",
    ),
    "PenstockQueryStalled": Case(
        {COMMIT: "60x20", LAG: "0+60x20"},
        (
            {COMMIT: "60x20", LAG: "0x20", of("penstock_source_lag_records", source="topic clicks"): "0x20"},
            {COMMIT: "60+60x20", LAG: "0+60x20"},
            # The batches of real-time mode end every 5 minutes.
            {COMMIT: "0 0 0 0 0 300x4 600x10", LAG: "5x20"},
            # A pipeline with a batch every 10 minutes, and a connector that is paused.
            {COMMIT: "60x20", LAG: "0+60x20", TARGET: "1200x20"},
            {COMMIT: "60x20", LAG: "0+60x20", STOPPED: "1x20"},
        ),
        10,
        ALL,
        "Query orders of orders finishes no batch",
        "Records wait, and the last batch finished 9m 0s ago.",
        {TARGET: "60x20", STOPPED: "0x20"},
    ),
    "PenstockDelayOverTarget": Case(
        {f'{DELAYS}, le="10"}}': "0x30", f'{DELAYS}, le="100"}}': "0+60x30", f'{DELAYS}, le="+Inf"}}': "0+60x30"},
        (
            {f'{DELAYS}, le="10"}}': "0+60x30", f'{DELAYS}, le="+Inf"}}': "0+60x30"},
            # No rows: no delay.
            {f'{DELAYS}, le="10"}}': "0x30", f'{DELAYS}, le="100"}}': "9x30", f'{DELAYS}, le="+Inf"}}': "9x30"},
        ),
        20,
        QUERY,
        "Rows of orders arrive later than its target",
        "One row in a hundred of query orders takes 1m 39s or more.",
        {TARGET: "60x30"},
    ),
    "PenstockLagGrowing": Case(
        {LAG: "0+30x60"},
        # The second one is far behind and catches up; the third one reads to the end now and then.
        (
            {LAG: "0x60"},
            {LAG: "3600-30x60"},
            {LAG: "0+30x10 0+30x10 0+30x10 0+30x10"},
            {LAG: "0+30x60", STOPPED: "1x60"},
        ),
        40,
        SOURCE,
        "orders falls further behind topic clicks",
        "Query orders loses 500ms each second.",
    ),
    "PenstockRetentionReached": Case(
        {LAG: "0+600x60", LEFT: "30000-600x60"},
        ({LAG: "0x60", LEFT: "100x60"}, {LAG: "0+60x60", LEFT: "30000-60x60"}),
        40,
        SOURCE,
        "orders soon loses data of topic clicks",
        "Query orders is behind by 6h 40m 0s: more than half of what is kept.",
    ),
    "PenstockBadRecords": Case(
        {BAD: "_x5 1x20"},
        ({BAD: "7x20"}, {of("penstock_source_rows_total", source="topic clicks"): "0+9x20"}),
        12,
        {**QUERY, "source": "topic clicks", "reason": "not JSON"},
        "topic clicks has records that orders cannot read",
        "Reason: not JSON.",
    ),
    "PenstockDeadLetters": Case(
        {LETTERS: "3x5 5x20"},
        ({LETTERS: "5x30"},),
        12,
        SINK,
        "orders sends rows to its dead letters",
        "They are not in topic out. Reason: too large.",
    ),
    "PenstockRestarts": Case(
        {FAULTS: "0x5 1 2 3 4 4x20"},
        ({FAULTS: "0x5 1 2 3 3x20"}, {FAULTS: "7x30"}, {of("penstock_query_starts_total", reason="first"): "0 9x20"}),
        12,
        QUERY,
        "Query orders of orders starts again and again",
        "Faults made it start 4 times within 10 minutes.",
    ),
    "PenstockWatermarkStands": Case(
        {WATERMARK: "1000x60", ROWS: "0+60x60"},
        ({WATERMARK: "1000+60x60", ROWS: "0+60x60"}, {WATERMARK: "1000x60", ROWS: "9x60"}),
        40,
        ALL,
        "The watermark of orders stands still",
        "Query orders reads rows, but its windows do not end and its state grows.",
    ),
    "PenstockStateGrowing": Case(
        {DISK: "1000000000+4000000x600"},
        # The second one is large and steady, the third one small.
        ({DISK: "9000000000x600"}, {DISK: "0+1000000x600"}),
        600,
        {**ALL, "operator": "counts"},
        "The state of orders doubles within a day",
        "Operator counts of query orders will have 8.531GiB tomorrow.",
    ),
    "PenstockConnectorTaskFailed": Case(
        {f'{TASKS}, state="FAILED"}}': "0 0 2x10"},
        ({f'{TASKS}, state="RUNNING"}}': "2x12", f'{TASKS}, state="FAILED"}}': "0x12"},),
        8,
        {"job": "penstock", "instance": "h:1", "connector": "shop", "state": "FAILED"},
        "2 tasks of connector shop have failed",
        "Their tables send no events; the reason is in the task's trace.",
    ),
    "PenstockIngestErrors": Case(
        {ERRORS: "0+5x30", ANSWERS: "0+95x30"},
        ({ERRORS: "0x30", ANSWERS: "0+95x30"}, {ERRORS: "0+1x30", ANSWERS: "0+999x30"}, {ERRORS: "7x30"}),
        15,
        {"job": "penstock-ingest", "topic": "clicks"},
        "Callers of penstock ingest get server errors for topic clicks",
        "5% of the requests are answered with 5xx.",
    ),
    "PenstockSpoolFilling": Case(
        {SPOOL: "0+10000000x60"},
        # The second one empties, the third one grows too slowly to be full within the hour.
        ({SPOOL: "0x60"}, {SPOOL: "700000000-9000000x60"}, {SPOOL: "100000000+1000000x60"}),
        50,
        {"job": "penstock-ingest", "instance": "h:2"},
        "The spool of penstock ingest fills up",
        "It is full to 80 %, or will be full within an hour: Kafka takes less than callers send.",
        {SPOOL.replace("bytes", "limit_bytes"): "1000000000x60"},
    ),
    "PenstockDown": Case(
        {UP: "1 1 0x10"},
        ({UP: "1x10"}, {'up{job="node", instance="h:1"}': "0x10"}),
        8,
        {"job": "penstock", "instance": "h:1"},
        "The command at h:1 does not answer",
        "It has ended, or Prometheus cannot reach it.",
    ),
    "PenstockScrapeAbsent": Case(
        {UP: "1x20"},
        ({UP: "1x20", BUILD: "1x20"}, {UP: "0x20"}),
        15,
        {"job": "penstock", "instance": "h:1"},
        "Prometheus has no metrics of Penstock",
        "No job named penstock is configured, or another program answers at h:1.",
    ),
}


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "rules.yml"
    file.write_text(rules_file())
    return file


def test_the_rules_are_valid(rules: Path) -> None:
    checked = promtool("check", "rules", "--lint-fatal", rules)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(ALERTS) + len(RECORDINGS)} rules found" in checked.stdout


def test_the_committed_rules_are_those_of_the_command() -> None:
    assert (ROOT / "deploy/prometheus/penstock-rules.yml").read_text() == rules_file()


def test_each_alert_has_a_case_and_a_section_in_its_runbook() -> None:
    names = [alert.name for alert in ALERTS]
    assert list(CASES) == names
    page = (ROOT / "docs/alerts.md").read_text()
    assert re.findall(r"^## (Penstock\w+)$", page, re.MULTILINE) == names
    for section in page.split("\n## ")[1:]:
        assert "**What to do.**" in section or not section.startswith("Penstock"), section


def test_the_table_of_alerts_has_their_severity_and_time() -> None:
    row = re.compile(r"^\| \[(\w+)\]\(#(\w+)\) \| (\w+) \|.*\| ([\w ]+) \|$", re.MULTILINE)
    rows = row.findall((ROOT / "docs/alerts.md").read_text())
    assert rows == [(one.name, one.anchor, one.severity, _in_words(one.wait)) for one in ALERTS]


def _in_words(wait: str) -> str:
    number, unit = int(wait[:-1]), {"m": "minute", "h": "hour"}[wait[-1]]
    return f"{number} {unit}{'s' * (number > 1)}" if number else "at once"


def test_the_address_of_the_runbooks_can_be_chosen() -> None:
    groups = yaml.safe_load(rules_file("https://docs.example/alerts.html"))["groups"]
    links = [rule["annotations"]["runbook_url"] for rule in groups[1]["rules"]]
    assert links == [f"https://docs.example/alerts.html#{name.lower()}" for name in CASES]


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_when_it_should_and_not_otherwise(name: str, rules: Path) -> None:
    case = CASES[name]
    runbook = f"docs/alerts.md#{name.lower()}"
    told = {
        "exp_labels": {**case.labels, "severity": next(alert.severity for alert in ALERTS if alert.name == name)},
        "exp_annotations": {"summary": case.summary, "description": case.details, "runbook_url": runbook},
    }
    tests = [_test(name, case, case.fires, [told]), *(_test(name, case, quiet, []) for quiet in case.quiet)]
    file = rules.with_name("tests.yml")
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    tested = promtool("test", "rules", file)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def _test(name: str, case: Case, series: dict[str, str], told: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in {**case.more, **series}.items()],
        "alert_rule_test": [{"eval_time": f"{case.at}m", "alertname": name, "exp_alerts": told}],
    }


def test_a_spool_that_is_nearly_full_fires_also_if_it_does_not_grow(rules: Path) -> None:
    case = CASES["PenstockSpoolFilling"]
    firing = {"expr": 'count(ALERTS{alertname="PenstockSpoolFilling", alertstate="firing"})', "eval_time": "45m"}
    tests = []
    for full, samples in (("850000000x60", [{"labels": "{}", "value": 1}]), ("790000000x60", [])):
        given = [{"series": name, "values": values} for name, values in {**case.more, SPOOL: full}.items()]
        tests.append({"interval": "1m", "input_series": given, "promql_expr_test": [firing | {"exp_samples": samples}]})
    file = rules.with_name("tests.yml")
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    tested = promtool("test", "rules", file)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_delays_are_recorded_by_query(rules: Path) -> None:
    """The quantiles of 100 rows, of which 90 take up to a second, and 10 up to 10 s."""
    series = {
        f'{DELAYS}, le="1"}}': "0+90x10",
        f'{DELAYS}, le="10"}}': "0+100x10",
        f'{DELAYS}, le="+Inf"}}': "0+100x10",
    }
    expected = {"p50": 0.5 / 0.9, "p95": 5.5, "p99": 9.1}
    labels = 'job="penstock", pipeline="orders", query="orders"'
    tests = [
        {
            "expr": f"round(job_pipeline_query:penstock_delay_seconds:{name}_5m, 0.001)",
            "eval_time": "8m",
            "exp_samples": [{"labels": f"{{{labels}}}", "value": round(value, 3)}],
        }
        for name, value in expected.items()
    ]
    given = [{"series": one, "values": values} for one, values in series.items()]
    file = rules.with_name("tests.yml")
    test = {"interval": "1m", "input_series": given, "promql_expr_test": tests}
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
    tested = promtool("test", "rules", file)
    assert tested.returncode == 0, tested.stdout + tested.stderr
