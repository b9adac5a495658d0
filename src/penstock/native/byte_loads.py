"""Loads bytes by address, one or sixteen at a time, for the loops over bodies.

A function that takes addresses is called with plain numbers. A function that takes arrays counts references and checks
whether each index is negative: reading a body took twice as long.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

WIDE = 16
"""Bytes that `plain` and `alike` load."""


@intrinsic  # type: ignore[untyped-decorator]
def address(typing: Any, data: Any) -> Any:
    """The address of an array's bytes; valid while something references the array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(source, ir.IntType(64))

    return types.int64(data), generate


@intrinsic  # type: ignore[untyped-decorator]
def byte(typing: Any, at: Any) -> Any:
    """The byte at this address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(place), ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def plain(typing: Any, at: Any) -> Any:
    """How many of the sixteen bytes at `at` come before the first quote, backslash or control character.

    Strings in JSON do not have these bytes unescaped. It compiles to three vector comparisons.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        small, word, vector = ir.IntType(8), ir.IntType(64), ir.VectorType(ir.IntType(8), WIDE)
        found = builder.load(builder.inttoptr(arguments[0], vector.as_pointer()), align=1)

        def all_of(value: int) -> Any:
            return ir.Constant(vector, [ir.Constant(small, value)] * WIDE)

        special = builder.icmp_unsigned("<", found, all_of(0x20))
        for value in b'"\\':
            special = builder.or_(special, builder.icmp_unsigned("==", found, all_of(value)))
        bits = builder.zext(builder.bitcast(special, ir.IntType(WIDE)), word)
        # A bit after the last byte, for the case that no byte is special.
        return builder.cttz(builder.or_(bits, ir.Constant(word, 1 << WIDE)), ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def alike(typing: Any, at: Any, other: Any) -> Any:
    """How many of the sixteen bytes at `at` equal those at `other`, before the first difference."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, vector = ir.IntType(64), ir.VectorType(ir.IntType(8), WIDE)
        both = [builder.load(builder.inttoptr(one, vector.as_pointer()), align=1) for one in arguments]
        bits = builder.zext(builder.bitcast(builder.icmp_unsigned("!=", *both), ir.IntType(WIDE)), word)
        return builder.cttz(builder.or_(bits, ir.Constant(word, 1 << WIDE)), ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64, types.int64), generate
