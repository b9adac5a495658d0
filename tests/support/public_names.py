"""The public names of the package: those that the pages of docs/api show."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[2] / "docs/api"


def modules() -> list[str]:
    """The modules of the reference."""
    return sorted({name for page in PAGES.glob("*.md") for name in re.findall("automodule:: (.*)", page.read_text())})


def public() -> Iterator[tuple[str, Any]]:
    """Each public function and class, with its name."""
    for module in map(import_module, modules()):
        names = getattr(module, "__all__", None)
        for name in names or [name for name in vars(module) if not name.startswith("_")]:
            value = getattr(module, name)
            own = names or getattr(value, "__module__", "") == module.__name__
            if own and (inspect.isfunction(value) or inspect.isclass(value)):
                yield f"{module.__name__}.{name}", value
