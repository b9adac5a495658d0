"""The jobs of benchmarks/streams.py in Quix Streams: job servers in out table events threads folder."""

import sys
from pathlib import Path

from quixstreams import Application
from quixstreams.dataframe.windows import Count

from _stream_peer import Event, run, slim

app = Application(
    broker_address=run.servers,
    consumer_group=Path(run.folder).name,
    auto_offset_reset="earliest",
    state_dir=run.folder,
    loglevel="WARNING",
    commit_interval=1.0,
    producer_extra_config={"compression.type": "lz4"},
)
source = app.topic(
    run.source, value_deserializer="json", key_deserializer="str", timestamp_extractor=lambda v, h, t, k: v["ts"]
)


def counted(value: Event) -> None:
    run.count()
    # Its own count is of what passes the filters.
    if run.seen == run.events:
        app.stop()


stream = app.dataframe(source).update(counted)
if run.job == "stateless":
    stream = stream[stream["price"] >= 10].apply(slim)
elif run.job == "enrich":
    users = run.people()
    stream = stream.apply(lambda value: slim(value | users.get(value["user"], {}), "name", "city"))
elif run.job == "tumbling":
    stream = stream.tumbling_window(60_000, grace_ms=10_000).agg(n=Count()).current()
else:
    sys.exit("Quix Streams has no session windows")
stream.to_topic(app.topic(run.results, value_serializer="json", key_serializer="str"))
app.run()
run.tell()
