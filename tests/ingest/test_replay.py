"""Events of a spool that Kafka never takes: they are written away, one a line, and the others go on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from kafka_topics import new_topic, stored

from penstock.local.services import Services
from penstock.source.http.events import Events
from penstock.source.http.segments import Folder
from penstock.source.http.spool import Spool
from penstock.wire import Producer


def test_events_that_a_topic_never_takes_are_each_a_line_of_the_file(services: Services, tmp_path: Path) -> None:
    refused = [{"user": "u-1", "note": "a\nb"}, {"user": "u-2", "more": [1, {}]}]
    good = [b'{"n":1}', b'{"n":2}']

    async def work(topic: str) -> None:
        spool = Spool(Folder(tmp_path), Producer(services.kafka), 1 << 20)
        await spool.open()
        pretty = [json.dumps(one, indent=2).replace("\n", "\r\n").encode() for one in refused]
        sent = [Events.of(good[:1], b"k", 0), Events.of(pretty, None, 0), Events.of(good[1:], b"k", 0)]
        await asyncio.gather(*[spool.put(topic, events) for events in sent])
        await asyncio.wait_for(spool._replay.drained(), 60)
        await spool.close()

    with new_topic(services.kafka, "compacted", 1, {"cleanup.policy": "compact"}) as topic:
        asyncio.run(work(topic))
        assert stored(services.kafka, topic, 1) == [good]
    lines = [json.loads(line) for line in (tmp_path / "refused.ndjson").read_text().splitlines()]
    assert [line["event"] for line in lines] == refused
    assert all("INVALID_RECORD" in line["reason"] and line["topic"] == topic for line in lines)
