"""Archives the classes that queries load, so that a session starts in half of the time: see `local.classes`."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock import window
from penstock.local import classes, java
from penstock.session import spark


def warm() -> None:
    """Make the archive if it does not exist."""
    classes.make(java.find(), __name__)


def _run() -> None:
    """A typical query: a stream of JSON, a window, files."""
    session = spark("warm", cores=1)
    with TemporaryDirectory() as folder:
        place = Path(folder, "in")
        place.mkdir()
        (place / "a.json").write_text(json.dumps({"k": "a", "at": "2026-01-31T12:00:00Z"}))
        frame = session.readStream.schema("k string, at timestamp").json(str(place)).withWatermark("at", "1 minute")
        counted = frame.transform(window.tumbling, "1 minute", at="at", key="k", name="counts", n="count(*)")
        to = counted.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
        to.trigger(availableNow=True).start(f"{folder}/out").awaitTermination()
        session.read.parquet(f"{folder}/out").groupBy("k").count().collect()
    session.stop()


if __name__ == "__main__":
    _run()
