"""Numba for all compiled loops, with a cache on disk that is never stale.

Numba keeps machine code as long as the source file of the outermost loop is unchanged. Loops and constants of other
files that were compiled into it may have changed: tests would then run old machine code and pass. Here the cache of a
file is valid for one state of everything that its loops can reach: its own source, the constants that it imports, and,
recursively, the sources of the files whose loops it calls; and for one release of Numba and Python.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.dispatcher import Dispatcher
from numba.extending import _Intrinsic, intrinsic

from penstock.native import Array

F = TypeVar("F", bound=Callable[..., Any])

CONSTANTS = (bool, int, float, str, bytes, np.generic)
_stamps: dict[str, bytes] = {}
"""By source file; a file's imports come before its first loop."""


def compiled(function: F) -> F:
    """The function in machine code: compiled at its first call, cached on disk for later processes."""
    return cast(F, _cached(njit(nogil=True)(function)))


def uncounted(function: F) -> F:
    """`compiled` without reference counts, for loops that make no arrays.

    The counts are atomic, and took a third of the time of loops that call each other for a few words of an array.
    """
    return cast(F, _cached(njit(nogil=True, _nrt=False)(function)))


def read_only(array: Array) -> Array:
    """The array, marked as read-only, for arguments: Numba compiles a loop for writable arrays separately."""
    array.flags.writeable = False
    return array


def _cached(function: Any) -> Any:
    # With NUMBA_DISABLE_JIT this is the Python function.
    if isinstance(function, Dispatcher):
        function.enable_caching()
        file: Any = function._cache._cache_file  # type: ignore[attr-defined]
        # The version is compared before the rest is unpickled, which may be of classes that have another name now.
        file._version = file._source_stamp = _of_function(function.py_func)
    return function


def stamp(file: str, values: dict[str, Any]) -> bytes:
    """A hash of everything that a file's machine code depends on; `values` are its globals."""
    if file not in _stamps:
        digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
        digest.update(hashlib.sha256(Path(file).read_bytes()).digest())
        for name, value in sorted(values.items()):
            digest.update(f" {name} ".encode() + _part(value, file))
        _stamps[file] = digest.digest()
    return _stamps[file]


def _of_function(function: Any) -> bytes:
    return stamp(function.__code__.co_filename, function.__globals__)


def _part(value: Any, file: str) -> bytes:
    """The bytes that a global value of a file adds to its stamp."""
    if isinstance(value, (Dispatcher, _Intrinsic)):
        function = value.py_func if isinstance(value, Dispatcher) else value._defn
        return b"" if function.__code__.co_filename == file else _of_function(function)
    if isinstance(value, ModuleType):
        return stamp(str(value.__file__), vars(value)) if _is_ours(value) else b""
    if isinstance(value, CONSTANTS):
        return repr(value).encode()
    if isinstance(value, tuple):
        return b",".join(_part(each, file) for each in value)
    if isinstance(value, np.ndarray):
        return hashlib.sha256(value.tobytes()).digest()
    return repr(getattr(value, "_fields", "")).encode()


def _is_ours(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] == __name__.partition(".")[0]


@intrinsic  # type: ignore[untyped-decorator]
def copy(typing: Any, out: Any, at: Any, data: Any, start: Any, size: Any) -> Any:
    """`out[at : at + size] = data[start : start + size]` by memcpy, without bounds checks.

    Numba compiles a slice assignment to a loop over bytes: 15 ns for 10 bytes and 420 ns for 1000, against 2 and 29.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, source = (context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 2))
        to, source = builder.gep(to, [arguments[1]]), builder.gep(source, [arguments[3]])
        cgutils.raw_memcpy(builder, to, source, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing: Any, data: Any, at: Any) -> Any:
    """Make the processor load `data[at]` into its caches while it continues."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.gep(context.make_array(signature.args[0])(context, builder, arguments[0]).data, [arguments[1]])
        number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # Arguments of llvm.prefetch: for reading, keep in all caches, data cache.
        builder.call(function, [builder.bitcast(place, byte), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(data, types.int64), generate
