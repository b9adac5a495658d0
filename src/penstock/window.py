"""Windows over event time: `window.tumbling`, `window.hopping`, `window.session`."""

from penstock.stream.window import hopping, session, tumbling

__all__ = ["hopping", "session", "tumbling"]
