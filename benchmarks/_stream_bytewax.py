"""The jobs of benchmarks/streams.py in Bytewax: job servers in out table events threads folder."""

import json
from datetime import UTC, datetime, timedelta

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSource, operators as kop
from bytewax.dataflow import Dataflow
from bytewax.testing import cluster_main
from confluent_kafka import OFFSET_BEGINNING

from _stream_peer import Event, run, slim


def parsed(message: KafkaSinkMessage) -> Event:
    run.count()
    value: Event = json.loads(message.value)
    return value


def message(user: str, value: Event) -> KafkaSinkMessage:
    return KafkaSinkMessage(user.encode(), json.dumps(value).encode())


flow = Dataflow("bench")
read = KafkaSource([run.servers], [run.source], starting_offset=OFFSET_BEGINNING, tail=False, batch_size=1000)
values = op.map("parse", op.input("in", flow, read), parsed)
clock = win.EventClock(
    ts_getter=lambda value: datetime.fromtimestamp(value["ts"] / 1000, UTC),
    wait_for_system_duration=timedelta(seconds=10),
)
if run.job == "stateless":
    dear = op.filter("dear", values, lambda value: value["price"] >= 10)
    made = op.map("slim", dear, lambda value: message(value["user"], slim(value)))
elif run.job == "enrich":
    users = run.people()
    made = op.map("join", values, lambda v: message(v["user"], slim(v | users.get(v["user"], {}), "name", "city")))
else:
    windower = (
        win.TumblingWindower(length=timedelta(minutes=1), align_to=datetime(2024, 1, 1, tzinfo=UTC))
        if run.job == "tumbling"
        else win.SessionWindower(gap=timedelta(seconds=30))
    )
    counts = win.count_window("count", values, clock, windower, lambda value: value["user"])
    made = op.map("out", counts.down, lambda pair: message(pair[0], {"user": pair[0], "n": pair[1][1]}))
kop.output("sink", made, brokers=[run.servers], topic=run.results, add_config={"compression.type": "lz4"})
cluster_main(flow, [], 0, worker_count_per_proc=run.threads)
run.tell()
