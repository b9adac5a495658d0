"""Which Maven repository jars come from when the user names none: the one that Spark itself resolves packages from.

Spark resolves `spark.jars.packages` with Apache Ivy, and Ivy carries the address of the public repository as a constant
of a class. It is read from there, so that both always agree. The layout of a class file is chapter 4 of the Java
Virtual Machine Specification; only what leads to a string constant of a field is read here.
"""

from __future__ import annotations

import struct
import zipfile
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

from penstock.errors import PenstockError

RESOLVER = "org/apache/ivy/plugins/resolver/IBiblioResolver.class"
FIELD = "DEFAULT_M2_ROOT"

# Bytes after the tag of each kind of constant, without text (tag 1), which carries its own length.
CONSTANT_SIZES = {
    3: 4,
    4: 4,
    5: 8,
    6: 8,
    7: 2,
    8: 2,
    9: 4,
    10: 4,
    11: 4,
    12: 4,
    15: 3,
    16: 2,
    17: 4,
    18: 4,
    19: 2,
    20: 2,
}
TEXT, STRING, LONG, DOUBLE = 1, 8, 5, 6


def default_root() -> str:
    """The base address of the public Maven repository, ending in a slash."""
    spec = find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else Path("pyspark/jars")
    for jar in sorted(folder.glob("ivy-*.jar")):
        with zipfile.ZipFile(jar) as archive:
            root = field_text(BytesIO(archive.read(RESOLVER)), FIELD)
        if root:
            return root.rstrip("/") + "/"
    raise PenstockError(
        "Cannot tell which Maven repository to fetch jars from: Spark's own Ivy jar is missing or names none",
        where=str(folder),
        next="set PENSTOCK_MIRROR to the base address of a Maven repository, or reinstall pyspark",
    )


def field_text(content: BytesIO, field: str) -> str | None:
    """The string constant of a static final field of a class file."""

    def number(size: int) -> int:
        return int.from_bytes(content.read(size), "big")

    content.read(8)  # magic number and version
    constants = _constants(content)
    content.read(6)  # access flags, this class, super class
    content.read(2 * number(2))  # interfaces
    for _ in range(number(2)):
        _, name, _, attributes = struct.unpack(">4H", content.read(8))
        for _ in range(attributes):
            attribute, value = constants[number(2)], content.read(number(4))
            if constants[name] == field and attribute == "ConstantValue":
                return str(constants[int(constants[int.from_bytes(value, "big")])])
    return None


def _constants(content: BytesIO) -> dict[int, str | int]:
    """Text by its index, and for a string constant the index of its text."""
    found: dict[int, str | int] = {}
    (count,) = struct.unpack(">H", content.read(2))
    index = 1
    while index < count:
        tag = content.read(1)[0]
        if tag == TEXT:
            found[index] = content.read(int.from_bytes(content.read(2), "big")).decode("utf-8", "replace")
        else:
            entry = content.read(CONSTANT_SIZES[tag])
            if tag == STRING:
                found[index] = int.from_bytes(entry, "big")
        index += 2 if tag in (LONG, DOUBLE) else 1  # the two wide ones take two places
    return found
