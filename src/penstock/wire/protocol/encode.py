"""Makes the function that writes a message from the message's table: Python source for one version, compiled once.

A function takes a mapping, the bytearray to append to, and the list of positions where chunks of records belong. Fields
that are not in the mapping get their default value. A field of another version is left out; if the table marks it as a
field that must not be lost and its value is not the default, it raises `UnsupportedVersion` before anything is sent. A
name that is in no version raises ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import groupby
from struct import Struct
from typing import Any

from penstock.wire.errors import UnsupportedVersion
from penstock.wire.protocol import types
from penstock.wire.protocol.message_schema import Api, Direction, Field, fields_of

Encoder = Callable[[Mapping[str, Any], bytearray, types.Cuts], None]


@cache
def encoder(api: Api, direction: Direction, version: int) -> Encoder:
    """The function that writes this message in this version."""
    source = _Source(f"{api.name} {direction} {version}", version, api.is_flexible(version))
    name = source.struct("message", fields_of(api, direction))
    exec(compile("\n".join(source.lines), f"<{source.title}, encode>", "exec"), source.names)
    made: Encoder = source.names[name]
    return made


class _Source:
    """The generated functions of one message: their lines, and the objects that they use."""

    def __init__(self, title: str, version: int, flexible: bool) -> None:
        self.title, self.version, self.flexible = title, version, flexible
        self.lines: list[str] = []
        self.names: dict[str, Any] = vars(types) | {"unknown": self._unknown, "lost": self._lost}

    def _unknown(self, names: set[str]) -> None:
        raise ValueError(f"{self.title} has no field {', '.join(sorted(names))}")

    def _lost(self, name: str, value: object) -> None:
        raise UnsupportedVersion(f"{self.title} cannot carry {name}={value!r}")

    def struct(self, path: str, fields: tuple[Field, ...]) -> str:
        """Write the function that writes a struct, after those of the structs inside it; returns its name."""
        self.names[f"names_{path}"] = frozenset(field.name for field in fields)
        body = [f"if not o.keys() <= names_{path}:", f"    unknown(o.keys() - names_{path})", "get = o.get"]
        body += self._body(path, fields)
        self.lines += [f"def {path}(o, out, cuts):", *_in(body)]
        return path

    def _body(self, path: str, fields: tuple[Field, ...]) -> Iterator[str]:
        for field in fields:
            if field.kept and not field.is_in(self.version):
                yield f"value = {self._get(field)}"
                yield f"if {'value' if field.array or field.fields else f'value != {field.default!r}'}:"
                yield f"    lost({field.name!r}, value)"
        present = [field for field in fields if field.is_in(self.version)]
        plain = [field for field in present if field.tag is None]
        for fixed, run in groupby(plain, key=_is_fixed):
            if fixed:
                yield self._fixed(list(run))
            else:
                for field in run:
                    yield f"value = {self._get(field)}"
                    yield from self._write(path, field)
        if self.flexible:
            yield from self._tagged(path, [field for field in present if field.tag is not None])

    def _get(self, field: Field) -> str:
        return f"get({field.name!r}, {field.default!r})"

    def _fixed(self, run: list[Field]) -> str:
        """The line that writes neighbouring fields of fixed size at once."""
        pack = "_".join(["pack", *(field.kind for field in run)])
        self.names[pack] = Struct(">" + "".join(types.FIXED[field.kind] for field in run)).pack
        return f"out += {pack}({', '.join(map(self._get, run))})"

    def _write(self, path: str, field: Field) -> Iterator[str]:
        """The lines that write `value`."""
        if _is_fixed(field):
            self.names[f"pack_{field.kind}"] = Struct(f">{types.FIXED[field.kind]}").pack
            yield f"out += pack_{field.kind}(value)"
        elif field.kind == "uuid" and not field.array:
            yield "write_uuid(out, value)"
        elif field.kind == "struct" and not field.array:
            yield f"{self.struct(f'{path}_{field.name}', field.fields)}(value, out, cuts)"
        else:
            yield from self._nullable(path, field)

    def _nullable(self, path: str, field: Field) -> Iterator[str]:
        """The lines that write a value after its length; null has a length too."""
        length = self._length(field.kind == "string" and not field.array)
        lines = self._array(path, field) if field.array else self._sized(field.kind, "value")
        if not field.may_be_null(self.version):
            yield from lines
            return
        yield "if value is None:"
        yield f"    {length}(out, -1)"
        yield "else:"
        yield from _in(lines)

    def _length(self, short: bool) -> str:
        return "write_compact_length" if self.flexible else "write_int16" if short else "write_int32"

    def _sized(self, kind: str, value: str) -> Iterator[str]:
        if kind == "records":
            yield f"write_records(out, cuts, {value}, {self.flexible})"
            return
        if kind == "string":
            yield f"data = {value}.encode()"
            value = "data"
        yield f"{self._length(kind == 'string')}(out, len({value}))"
        yield f"out += {value}"

    def _array(self, path: str, field: Field) -> Iterator[str]:
        yield f"{self._length(short=False)}(out, len(value))"
        if field.kind in types.FIXED:
            yield f"out += Struct(f'>{{len(value)}}{types.FIXED[field.kind]}').pack(*value)"
            return
        yield "for item in value:"
        if field.kind == "struct":
            yield f"    {self.struct(f'{path}_{field.name}', field.fields)}(item, out, cuts)"
        else:
            yield from _in(self._sized(field.kind, "item"))

    def _tagged(self, path: str, fields: list[Field]) -> Iterator[str]:
        """The lines that write each field that is not its default, by its tag; Java leaves the others out too."""
        if not fields:
            yield "out.append(0)"
            return
        yield "tags, body = [], out"
        for field in sorted(fields, key=lambda field: field.tag or 0):
            yield f"value = {self._get(field)}"
            yield f"if {self._differs(path, field)}:"
            yield "    out = bytearray()"
            yield from _in(self._write(path, field))
            yield f"    tags.append(({field.tag}, out))"
        yield "out = body"
        yield "write_unsigned(out, len(tags))"
        yield "for tag, data in tags:"
        yield "    write_unsigned(out, tag)"
        yield "    write_unsigned(out, len(data))"
        yield "    out += data"

    def _differs(self, path: str, field: Field) -> str:
        """An expression that is true if `value` is not the field's default."""
        if field.array:
            return "value is None or len(value)"
        if not field.fields:
            return f"value != {field.default!r}"
        defaults = f"defaults_{path}_{field.name}"
        self.names[defaults] = {inner.name: inner.default for inner in field.fields}
        return f"{{**{defaults}, **value}} != {defaults}"


def _is_fixed(field: Field) -> bool:
    # The size of a uuid must be checked: `struct` would cut a longer value, and fill a shorter one with zeros.
    return field.kind in types.FIXED and field.kind != "uuid" and not field.array


def _in(lines: Iterator[str] | list[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)
