"""Files for pipelines: `files.sink(...)`."""

from penstock.sink.files import FilesSink, sink

__all__ = ["FilesSink", "sink"]
