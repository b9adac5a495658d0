"""Makes the function that reads a message from the message's table: Python source for one version, compiled once.

Source and not closures, because then one call of `struct` reads neighbouring fields of fixed size into local variables:
reading an answer to Produce takes a few microseconds. A function takes the bytes and a position, and returns the
message and the position after it; if the bytes are wrong it raises `BadBytes` with the position. Fields that the
version does not have get their default value; tagged fields that are not in the table are skipped (KIP-482).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby
from struct import Struct, error as StructError
from typing import Any

from penstock.wire.protocol import types
from penstock.wire.protocol.message_schema import Api, Direction, Field, fields_of

Decoder = Callable[[memoryview, int], tuple[dict[str, Any], int]]


@cache
def decoder(api: Api, direction: Direction, version: int) -> Decoder:
    """The function that reads this message in this version."""
    source = _Source(version, api.is_flexible(version))
    name = source.struct("message", fields_of(api, direction))
    exec(compile("\n".join(source.lines), f"<{api.name} {direction} {version}, decode>", "exec"), source.names)
    made: Decoder = source.names[name]
    return made


class _Source:
    """The generated functions of one message: their lines, and the objects that they use."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version, self.flexible = version, flexible
        self.lines: list[str] = []
        self.names: dict[str, Any] = vars(types) | {"StructError": StructError}

    def struct(self, path: str, fields: tuple[Field, ...]) -> str:
        """Write the function that reads a struct, after those of the structs inside it; returns its name."""
        body = [*self._body(path, fields), f"return {self._result(fields)}, p"]
        self.lines += [f"def {path}(data, p):", "    try:", *_in(_in(body))]
        self.lines += ["    except StructError:", "        raise BadBytes(p, 'the bytes end inside a value') from None"]
        return path

    def _result(self, fields: tuple[Field, ...]) -> str:
        return "{" + ", ".join(f"{field.name!r}: {self._value(field)}" for field in fields) + "}"

    def _value(self, field: Field) -> str:
        return f"v_{field.name}" if field.is_in(self.version) else self._default(field)

    def _default(self, field: Field) -> str:
        """An expression that makes a new default value."""
        if field.array:
            return "[]"
        return self._defaults(field.fields) if field.fields else repr(field.default)

    def _defaults(self, fields: tuple[Field, ...]) -> str:
        return "{" + ", ".join(f"{field.name!r}: {self._default(field)}" for field in fields) + "}"

    def _body(self, path: str, fields: tuple[Field, ...]) -> Iterator[str]:
        present = [field for field in fields if field.is_in(self.version)]
        plain = [field for field in present if field.tag is None]
        for fixed, run in groupby(plain, key=lambda field: field.kind in types.FIXED and not field.array):
            if fixed:
                yield from self._fixed(list(run))
            else:
                for field in run:
                    yield from self._read(path, field)
        if self.flexible:
            yield from self._tagged(path, [field for field in present if field.tag is not None])

    def _fixed(self, run: list[Field]) -> Iterator[str]:
        """The lines that read neighbouring fields of fixed size at once."""
        code = Struct(">" + "".join(types.FIXED[field.kind] for field in run))
        unpack = "_".join(["unpack", *(field.kind for field in run)])
        self.names[unpack] = code.unpack_from
        yield f"{', '.join(f'v_{field.name}' for field in run)}, = {unpack}(data, p)"
        yield f"p += {code.size}"

    def _read(self, path: str, field: Field) -> Iterator[str]:
        """The lines that set the field's variable, and move `p` after the field."""
        target = f"v_{field.name}"
        if field.kind in types.FIXED and not field.array:
            yield from self._fixed([field])
        elif field.kind == "struct" and not field.array:
            yield f"{target}, p = {self.struct(f'{path}_{field.name}', field.fields)}(data, p)"
        else:
            short = field.kind == "string" and not field.array
            yield f"size, q = {self._length(short)}(data, p)"
            if field.may_be_null(self.version):
                yield "if null_or(size, p) < 0:"
                yield f"    {target}, p = None, q"
                yield "else:"
            else:
                yield "not_null(size, p)"
                yield "if True:"
            yield from _in(self._array(path, field, target) if field.array else _sized(field.kind, target))

    def _length(self, short: bool) -> str:
        return "read_compact_length" if self.flexible else "read_int16" if short else "read_int32"

    def _array(self, path: str, field: Field, target: str) -> Iterator[str]:
        # Each element has at least one byte, so the count can be checked before a list is made.
        yield "end_of(data, q, size)"
        if field.kind in types.FIXED:
            code = types.FIXED[field.kind]
            yield f"p = end_of(data, q, size * {Struct('>' + code).size})"
            yield f"{target} = list(Struct(f'>{{size}}{code}').unpack_from(data, q))"
            return
        yield f"p, {target} = q, []"
        yield "for _ in range(size):"
        if field.kind == "struct":
            yield f"    item, p = {self.struct(f'{path}_{field.name}', field.fields)}(data, p)"
        else:
            yield f"    size, q = {self._length(short=True)}(data, p)"
            yield "    not_null(size, p)"
            yield from _in(_sized(field.kind, "item"))
        yield f"    {target}.append(item)"

    def _tagged(self, path: str, fields: list[Field]) -> Iterator[str]:
        for field in fields:
            yield f"v_{field.name} = {self._default(field)}"
        yield "count, p = read_unsigned(data, p)"
        yield "for _ in range(count):"
        yield "    tag, p = read_unsigned(data, p)"
        yield "    size, p = read_unsigned(data, p)"
        yield "    end = end_of(data, p, size)"
        for field in fields:
            yield f"    if tag == {field.tag}:"
            yield from _in(_in(self._read(path, field)))
            yield "        if p != end:"
            yield "            raise BadBytes(p, f'tagged field {tag} does not have the announced size')"
        yield "    p = end"


def _sized(kind: str, target: str) -> Iterator[str]:
    """The lines that read a value of `size` bytes at `q`; records stay a view of the frame."""
    if kind == "string":
        yield f"{target}, p = read_text(data, q, size)"
        return
    yield "p = end_of(data, q, size)"
    yield f"{target} = data[q:p]" if kind == "records" else f"{target} = bytes(data[q:p])"


def _in(lines: Iterator[str] | list[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)
