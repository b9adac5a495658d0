"""Tells those who ask for it, in a forked process, that they are copies; so nobody need ask for the process's id."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Copied(Protocol):
    """What must not be used in a forked process, because it shares connections or locks with the original."""

    def forked(self) -> None:
        """This is the copy."""


_known: WeakSet[Copied] = WeakSet()


def tell(one: Copied) -> None:
    """Call `forked` of this object in every process that is forked from this one, for as long as it lives."""
    _known.add(one)


def _forked() -> None:
    for one in _known:
        one.forked()


os.register_at_fork(after_in_child=_forked)
