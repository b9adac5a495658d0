"""Configurations of sink connectors that write to a file, for tests of what all sinks have."""

from __future__ import annotations


def file_sink(**more: str) -> dict[str, str]:
    """A valid configuration, with the properties `more`, in whose names `_` stands for a point."""
    return {
        "name": "x",
        "connector.class": "FileStreamSink",
        "topics": "t",
        "file": "/tmp/x",
        "key.converter": "StringConverter",
        "value.converter": "StringConverter",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
