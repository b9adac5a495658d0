"""Reads and writes messages by their tables: the functions of a message are composed once for each version of it.

A reader takes the bytes and a position, and returns the message and the position after it; if the bytes are wrong it
raises `BadBytes` with the position. Fields that the version does not have get their default value; tagged fields that
are not in the table are skipped (KIP-482).

A writer takes a mapping, the bytearray to append to, and the list of positions where chunks of records belong. Fields
that are not in the mapping get their default value. A field of another version is left out; if the table marks it as a
field that must not be lost and its value is not the default, the writer raises `UnsupportedVersion`. A name that is in
no version raises ValueError.

Neighbouring fields of fixed size are one call of `struct`: most fields are of this kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from itertools import groupby
from struct import Struct, error as StructError
from typing import Any

from penstock.wire.errors import UnsupportedVersion
from penstock.wire.protocol import types
from penstock.wire.protocol.message_schema import Api, Direction, Field, fields_of
from penstock.wire.protocol.types import BadBytes, Cuts, end_of, not_null, null_or

Message = dict[str, Any]
Read = Callable[[memoryview, int], tuple[Any, int]]
ReadMessage = Callable[[memoryview, int], tuple[Message, int]]
ReadInto = Callable[[Message, memoryview, int], int]
"""Sets fields of a message, and returns the position after them."""
Write = Callable[[Any, bytearray, Cuts], None]


@cache
def decoder(api: Api, direction: Direction, version: int) -> ReadMessage:
    """The function that reads this message in this version."""
    return _Reader(version, api.is_flexible(version)).struct(fields_of(api, direction))


@cache
def encoder(api: Api, direction: Direction, version: int) -> Write:
    """The function that writes this message in this version."""
    title = f"{api.name} {direction} {version}"
    return _Writer(title, version, api.is_flexible(version)).struct(fields_of(api, direction))


def _default(field: Field) -> Any:
    """A new default value of the field."""
    if field.array:
        return []
    return {inner.name: _default(inner) for inner in field.fields} if field.fields else field.default


class _Reader:
    """Composes the functions that read one version."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version, self.flexible = version, flexible
        self.length: Read = types.read_compact_length if flexible else types.read_int32
        self.short: Read = types.read_compact_length if flexible else types.read_int16

    def struct(self, fields: tuple[Field, ...]) -> ReadMessage:
        steps = [*self._steps(fields)]
        absent = [field for field in fields if not field.is_in(self.version) or field.tag is not None]

        def read(data: memoryview, position: int) -> tuple[Message, int]:
            message: Message = {field.name: _default(field) for field in absent}
            for step in steps:
                position = step(message, data, position)
            return message, position

        return read

    def _steps(self, fields: tuple[Field, ...]) -> Iterable[ReadInto]:
        present = [field for field in fields if field.is_in(self.version)]
        for fixed, run in groupby((field for field in present if field.tag is None), key=_is_fixed):
            if fixed:
                yield self._fixed(list(run))
            else:
                for field in run:
                    yield _into(field.name, self.value(field))
        if self.flexible:
            yield self._tagged({field.tag: field for field in present if field.tag is not None})

    def _fixed(self, run: list[Field]) -> ReadInto:
        """Neighbouring fields of fixed size."""
        code, names = Struct(">" + "".join(types.FIXED[field.kind] for field in run)), [field.name for field in run]

        def read(message: Message, data: memoryview, position: int) -> int:
            try:
                message.update(zip(names, code.unpack_from(data, position), strict=True))
            except StructError:
                raise BadBytes(position, "the bytes end inside a value") from None
            return position + code.size

        return read

    def _tagged(self, fields: Mapping[int | None, Field]) -> ReadInto:
        known = {tag: (field.name, self.value(field)) for tag, field in fields.items()}

        def read(message: Message, data: memoryview, position: int) -> int:
            count, position = types.read_unsigned(data, position)
            for _ in range(count):
                tag, position = types.read_unsigned(data, position)
                size, position = types.read_unsigned(data, position)
                end = end_of(data, position, size)
                if tag in known:
                    name, value = known[tag]
                    message[name], position = value(data, position)
                    if position != end:
                        raise BadBytes(position, f"tagged field {tag} does not have the announced size")
                position = end
            return position

        return read

    def value(self, field: Field) -> Read:
        """Reads the field's value."""
        if not field.array and field.kind in types.FIXED:
            return _number(field.kind)
        if not field.array and field.kind == "struct":
            return self.struct(field.fields)
        sized = self._array(field) if field.array else _SIZED[field.kind]
        length = self.short if field.kind == "string" and not field.array else self.length
        return _nullable(length, sized) if field.may_be_null(self.version) else _after(length, sized)

    def _array(self, field: Field) -> Callable[[memoryview, int, int], tuple[Any, int]]:
        if field.kind in types.FIXED:
            return partial(_numbers, types.FIXED[field.kind], Struct(">" + types.FIXED[field.kind]).size)
        item = self.struct(field.fields) if field.kind == "struct" else _after(self.short, _SIZED[field.kind])

        def read(data: memoryview, position: int, count: int) -> tuple[list[Any], int]:
            # Each element has at least one byte, so the count can be checked before a list is made.
            end_of(data, position, count)
            items = []
            for _ in range(count):
                element, position = item(data, position)
                items.append(element)
            return items, position

        return read


def _into(name: str, value: Read) -> ReadInto:
    def read(message: Message, data: memoryview, position: int) -> int:
        message[name], position = value(data, position)
        return position

    return read


def _number(kind: str) -> Read:
    code = Struct(">" + types.FIXED[kind])

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        try:
            return code.unpack_from(data, position)[0], position + code.size
        except StructError:
            raise BadBytes(position, "the bytes end inside a value") from None

    return read


def _length_of(length: Read, data: memoryview, position: int) -> tuple[int, int]:
    try:
        return length(data, position)
    except StructError:
        raise BadBytes(position, "the bytes end inside a value") from None


def _after(length: Read, sized: Callable[[memoryview, int, int], tuple[Any, int]]) -> Read:
    """A value after its length."""

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        size, start = _length_of(length, data, position)
        return sized(data, start, not_null(size, position))

    return read


def _nullable(length: Read, sized: Callable[[memoryview, int, int], tuple[Any, int]]) -> Read:
    def read(data: memoryview, position: int) -> tuple[Any, int]:
        size, start = _length_of(length, data, position)
        return (None, start) if null_or(size, position) < 0 else sized(data, start, size)

    return read


def _bytes(data: memoryview, position: int, size: int) -> tuple[bytes, int]:
    end = end_of(data, position, size)
    return bytes(data[position:end]), end


def _view(data: memoryview, position: int, size: int) -> tuple[memoryview, int]:
    """Records stay a view of the frame."""
    end = end_of(data, position, size)
    return data[position:end], end


def _numbers(code: str, width: int, data: memoryview, position: int, count: int) -> tuple[list[Any], int]:
    end_of(data, position, count)
    end = end_of(data, position, count * width)
    return list(Struct(f">{count}{code}").unpack_from(data, position)), end


_SIZED: dict[str, Callable[[memoryview, int, int], tuple[Any, int]]] = {
    "string": types.read_text,
    "bytes": _bytes,
    "records": _view,
}


class _Writer:
    """Composes the functions that write one version."""

    def __init__(self, title: str, version: int, flexible: bool) -> None:
        self.title, self.version, self.flexible = title, version, flexible
        self.length = types.write_compact_length if flexible else types.write_int32
        self.short = types.write_compact_length if flexible else types.write_int16

    def struct(self, fields: tuple[Field, ...]) -> Write:
        names = frozenset(field.name for field in fields)
        steps, title = [*self._steps(fields)], self.title

        def write(message: Mapping[str, Any], out: bytearray, cuts: Cuts) -> None:
            if not message.keys() <= names:
                raise ValueError(f"{title} has no field {', '.join(sorted(message.keys() - names))}")
            for step in steps:
                step(message, out, cuts)

        return write

    def _steps(self, fields: tuple[Field, ...]) -> Iterable[Write]:
        yield from (self._refused(field) for field in fields if not field.ignorable and not field.is_in(self.version))
        present = [field for field in fields if field.is_in(self.version)]
        for fixed, run in groupby((field for field in present if field.tag is None), key=_is_checked):
            if fixed:
                yield _packed(list(run))
            else:
                for field in run:
                    yield _of(field, self.value(field))
        if self.flexible:
            yield self._tagged(sorted((field for field in present if field.tag is not None), key=lambda f: f.tag or 0))

    def _refused(self, field: Field) -> Write:
        """Nothing, if the field has its default; it is not in this version."""

        def write(message: Mapping[str, Any], out: bytearray, cuts: Cuts) -> None:
            value = message.get(field.name, field.default)
            if value if field.array or field.fields else value != field.default:
                raise UnsupportedVersion(f"{self.title} cannot carry {field.name}={value!r}")

        return write

    def value(self, field: Field) -> Write:
        """Writes the field's value."""
        if _is_checked(field):
            pack = Struct(">" + types.FIXED[field.kind]).pack
            return lambda value, out, cuts: out.extend(pack(value))
        if field.kind == "uuid" and not field.array:
            return lambda value, out, cuts: types.write_uuid(out, value)
        if field.kind == "struct" and not field.array:
            return self.struct(field.fields)
        sized = self._array(field) if field.array else self._sized(field.kind)
        if not field.may_be_null(self.version):
            return sized
        length = self.short if field.kind == "string" and not field.array else self.length
        return lambda value, out, cuts: length(out, -1) if value is None else sized(value, out, cuts)

    def _sized(self, kind: str) -> Write:
        """A value after its length."""
        length, short, flexible = self.length, self.short, self.flexible

        def text(value: str, out: bytearray, cuts: Cuts) -> None:
            data = value.encode()
            short(out, len(data))
            out += data

        def data(value: types.Buffer, out: bytearray, cuts: Cuts) -> None:
            length(out, len(value))
            out += value

        def records(value: Any, out: bytearray, cuts: Cuts) -> None:
            types.write_records(out, cuts, value, flexible)

        writers: dict[str, Write] = {"string": text, "bytes": data, "records": records}
        return writers[kind]

    def _array(self, field: Field) -> Write:
        length = self.length
        if field.kind in types.FIXED:
            code = types.FIXED[field.kind]

            def numbers(value: Any, out: bytearray, cuts: Cuts) -> None:
                length(out, len(value))
                out += Struct(f">{len(value)}{code}").pack(*value)

            return numbers
        item = self.struct(field.fields) if field.kind == "struct" else self._sized(field.kind)

        def items(value: Any, out: bytearray, cuts: Cuts) -> None:
            length(out, len(value))
            for element in value:
                item(element, out, cuts)

        return items

    def _tagged(self, fields: list[Field]) -> Write:
        """Each field that is not its default, by its tag; Java leaves the others out too."""
        writers = [(field, self.value(field)) for field in fields]

        def write(message: Mapping[str, Any], out: bytearray, cuts: Cuts) -> None:
            tags = []
            for field, value_of in writers:
                value = message.get(field.name, field.default)
                if _differs(field, value):
                    body = bytearray()
                    value_of(value, body, cuts)
                    tags.append((field.tag or 0, body))
            types.write_unsigned(out, len(tags))
            for tag, body in tags:
                types.write_unsigned(out, tag)
                types.write_unsigned(out, len(body))
                out += body

        return write


def _of(field: Field, value: Write) -> Write:
    name, default = field.name, field.default
    return lambda message, out, cuts: value(message.get(name, default), out, cuts)


def _packed(run: list[Field]) -> Write:
    """Neighbouring fields of fixed size."""
    pack, fields = Struct(">" + "".join(types.FIXED[f.kind] for f in run)).pack, [(f.name, f.default) for f in run]
    return lambda message, out, cuts: out.extend(pack(*[message.get(name, default) for name, default in fields]))


def _differs(field: Field, value: Any) -> bool:
    """Whether the value is not the field's default."""
    if field.array:
        return value is None or len(value) > 0
    if not field.fields:
        return bool(value != field.default)
    defaults = {inner.name: inner.default for inner in field.fields}
    return bool({**defaults, **value} != defaults)


def _is_fixed(field: Field) -> bool:
    return field.kind in types.FIXED and not field.array


def _is_checked(field: Field) -> bool:
    # The size of a uuid must be checked: `struct` would cut a longer value, and fill a shorter one with zeros.
    return _is_fixed(field) and field.kind != "uuid"
