"""Loads the public names of a package at first use: a process that needs one part does not load the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from penstock import extras

EXTRAS = {
    "penstock.cdc": "cql",
    "penstock.cql": "cql",
    "penstock.delta": "delta",
    "penstock.postgres": "postgres",
    "penstock.segment": "segments",
}
"""The extra with all that a public package needs."""


def names(
    package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` (PEP 562) for `package`; `homes` maps modules to the names they define.

    `modules` are public modules of the package itself. No other public name may equal the name of a module of the
    package: importing the module would replace it.
    """
    home = {name: module for module, names in homes.items() for name in names}
    public = sorted({*home, *modules})

    def load(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(home[name]), name)
        except ModuleNotFoundError as error:
            raise extras.missing(error, f"{package}.{name}", EXTRAS.get(package)) from error
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        # Without what the package imports for itself, such as `annotations`: it would stand among the public names.
        return sorted({name for name in vars(sys.modules[package]) if name.startswith("__")} | {*public})

    return public, load, listed
