"""Windows over event time: `window.tumbling`, `window.hopping`, `window.session`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.window.windows import hopping as hopping, session as session, tumbling as tumbling
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.window.windows": ("hopping", "session", "tumbling"),
        },
    )
