"""Builds message classes from the text of a .proto file with Google's own compiler."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import google.type.date_pb2 as date
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

# Files that others import: Google's own, and files of googleapis.
INCLUDED = (files("grpc_tools") / "_proto", Path(date.__file__).parents[2])


def message_class(text: str, imports: Mapping[str, str] | None = None) -> Any:
    """The class of the file's first message; `imports` are the texts of other files by name."""
    with TemporaryDirectory() as folder:
        for name, of in {"one.proto": text, **(imports or {})}.items():
            Path(folder, name).write_text(of)
        places = [f"-I{place}" for place in (folder, *INCLUDED)]
        made = Path(folder, "set")
        command = ["protoc", *places, "--include_imports", f"--descriptor_set_out={made}", "one.proto"]
        assert protoc.main(command) == 0, text
        compiled = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in compiled.file:
        pool.Add(file)
    one = compiled.file[-1]
    name = one.message_type[0].name
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{one.package}.{name}".lstrip(".")))
