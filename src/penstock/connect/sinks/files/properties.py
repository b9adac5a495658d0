"""The properties of the sink of files, which are those of Confluent's S3 and HDFS sinks, and what they say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.connect.definition import Check, Property, of_file, of_property, settings_of
from penstock.connect.java.date_time_formatter import zone_of
from penstock.connect.sinks.destination import Chunks, Tolerance, tolerance_of
from penstock.connect.sinks.files.folders import (
    DAILY,
    DAY,
    HOUR,
    HOURLY,
    ByFields,
    ByTime,
    Folder,
    Moment,
    OfField,
    by_partition,
    of_kafka,
    path_problem,
)
from penstock.connect.sinks.files.formats import ByteLines, FileFormat, JsonLines, ParquetRows, columns_of
from penstock.connect.sinks.files.store import FileStore, FolderStore, S3Store
from penstock.connect.sinks.properties import FREE as OF_SINKS, SINK_CHECKS, Problems, of_any_sink, of_connect
from penstock.connect.source.properties import FILES_CLASS
from penstock.connect.transforms.steps import PerSchema

CLASS = FILES_CLASS
CLASS_NAMES = (CLASS, "FilesSinkConnector", "FilesSink")
FREE = OF_SINKS
FORMATS = ("JsonFormat", "ParquetFormat", "ByteArrayFormat")
PARTITIONERS = (
    "DefaultPartitioner",
    "FieldPartitioner",
    "TimeBasedPartitioner",
    "DailyPartitioner",
    "HourlyPartitioner",
)
EXTRACTORS = ("Record", "RecordField")
CONNECTION = "store.url"
"""The property at which errors of the connection are reported."""


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _one_of(allowed: tuple[str, ...]) -> Check:
    """A check of the last part of a class's name."""
    return lambda name: None if _last(name) in allowed else f"it must be one of {', '.join(allowed)}"


def _store(text: str) -> str | None:
    url = urlsplit(text)
    if url.scheme == "s3":
        return None if url.netloc and not url.query else "it must be s3://bucket/prefix"
    if url.scheme not in ("", "file"):
        return f"{url.scheme}: is not supported: mount it as a folder, or give s3://bucket/prefix"
    return None if Path(url.path).is_absolute() and not url.netloc else "it must be the whole path of a folder"


def _folder(text: str) -> str | None:
    wrong = text.startswith("/") or any(part.strip(".") == "" for part in text.split("/")) or "\0" in text
    return "it must be the name of a folder in store.url" if wrong else None


def _extractor(text: str) -> str | None:
    if text == "Wallclock":
        return "a record that is written again would get another time, and be there twice: use Record or RecordField"
    return _one_of(EXTRACTORS)(text)


_CHECKS: dict[str, Check] = {
    **SINK_CHECKS,
    "store": _store,
    "folder": _folder,
    "delimiter": lambda text: None if re.fullmatch(r"[^/\0]{1,10}", text) else "it must have 1 to 10 characters, no /",
    "width": lambda value: None if 0 <= value <= 19 else "it must be from 0 to 19",
    "extension": lambda text: None if re.fullmatch(r"[\w.-]{0,20}", text) else "it must be like .bin",
    "endpoint": lambda text: (
        None if not text or re.fullmatch(r"https?://[^/\s@]+/?", text) else "it must be like https://host:port"
    ),
    "format": _one_of(FORMATS),
    "partitioner": _one_of(PARTITIONERS),
    "path": lambda text: path_problem(text) if text else None,
    "duration": lambda value: None if value == -1 or value > 0 else "it must be above 0, or -1 for none",
    "extractor": _extractor,
    "false": lambda value: "only false is supported: put them into the value with a transform" if value else None,
}


@cache
def properties() -> tuple[Property, ...]:
    """Kafka Connect's properties, and the connector's."""
    own = of_file("penstock.connect.sinks.files", "properties.toml", _CHECKS)
    return (*of_connect(CLASS_NAMES), *own)


def definitions(config: Mapping[str, str]) -> list[Property]:
    """None: a configuration makes no names of properties."""
    return []


def together(values: Mapping[str, Any], config: Mapping[str, str]) -> Problems:
    """Errors between properties that are each valid."""
    yield from of_any_sink(values, config)
    partitioner = _last(values["partitioner.class"])
    if partitioner == "FieldPartitioner" and not values["partition.field.name"]:
        yield "partition.field.name", "FieldPartitioner needs the names of fields"
    if partitioner == "TimeBasedPartitioner" and not values["path.format"]:
        yield "path.format", f"TimeBasedPartitioner needs it, as in {HOURLY}"
    if bool(values["aws.access.key.id"]) != bool(values["aws.secret.access.key"]):
        yield "store.url", "a key of S3 has an id and a secret: give aws.access.key.id and aws.secret.access.key"


@dataclass(frozen=True)
class FilesSettings:
    """What a valid configuration says."""

    store: FileStore
    place: str
    """The store and the folder of topics in it, for people."""
    chunks: Chunks
    moment: Moment
    folder: Folder
    format: Callable[[], FileFormat]
    extension: str
    topics_dir: str = field(metadata=of_property("topics.dir"))
    rotation: int = field(metadata=of_property("rotate.interval.ms"))
    """The most milliseconds of a file, by the times of its records; below 1 for no limit."""
    delimiter: str = field(metadata=of_property("file.delim"))
    width: int = field(metadata=of_property("filename.offset.zero.pad.width"))
    skips_nulls: bool = field(
        metadata=of_property("behavior.on.null.values", convert=lambda choice: choice == "ignore")
    )
    tolerance: Tolerance = field(metadata=of_property("errors.tolerance", convert=tolerance_of))


def settings(values: Mapping[str, Any], config: Mapping[str, str]) -> FilesSettings:
    """What these valid values say."""
    moment = OfField(values["timestamp.field"]) if values["timestamp.extractor"] == "RecordField" else of_kafka
    waits = [values[name] for name in ("rotate.interval.ms", "rotate.schedule.interval.ms") if values[name] > 0]
    format, extension = _format(values)
    return settings_of(
        FilesSettings,
        values,
        store=_store_of(values),
        place=f"{values['store.url'].rstrip('/')}/{values['topics.dir']}",
        chunks=Chunks(values["flush.size"], timedelta(milliseconds=min(waits)) if waits else None),
        moment=moment,
        folder=_folders(values, moment),
        format=format,
        extension=extension,
    )


def _store_of(values: Mapping[str, Any]) -> FileStore:
    url = urlsplit(values["store.url"])
    if url.scheme != "s3":
        return FolderStore(Path(unquote(url.path) if url.scheme else values["store.url"]))
    own = (values[name] for name in ("s3.region", "s3.endpoint", "aws.access.key.id", "aws.secret.access.key"))
    region, endpoint, key, secret = own
    return S3Store(f"{url.netloc}{url.path}".rstrip("/"), region, endpoint.rstrip("/"), key, secret)


def _folders(values: Mapping[str, Any], moment: Moment) -> Folder:
    name, zone = _last(values["partitioner.class"]), zone_of(values["timezone"])
    if name == "DefaultPartitioner":
        return by_partition
    if name == "FieldPartitioner":
        return ByFields(tuple(values["partition.field.name"]))
    if name == "TimeBasedPartitioner":
        return ByTime(values["path.format"], values["partition.duration.ms"], zone, moment)
    return ByTime(DAILY, DAY, zone, moment) if name == "DailyPartitioner" else ByTime(HOURLY, HOUR, zone, moment)


def _format(values: Mapping[str, Any]) -> tuple[Callable[[], FileFormat], str]:
    """What makes a file, and the end of its name."""
    name = _last(values["format.class"])
    if name == "JsonFormat":
        return partial(JsonLines, values["json.decimal.format"] == "NUMERIC"), ".json"
    if name == "ByteArrayFormat":
        return ByteLines, values["format.bytearray.extension"]
    codec = values["parquet.codec"]
    return partial(ParquetRows, codec, PerSchema(columns_of)), f"{'' if codec == 'none' else f'.{codec}'}.parquet"
