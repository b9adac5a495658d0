"""The names that Kafka allows for topics: `org.apache.kafka.common.internals.Topic` has the same rule."""

from __future__ import annotations

import re

LONGEST = 249
"""Characters: a broker makes folders of topics' names, with the number of a partition."""
_FORBIDDEN = re.compile("[^A-Za-z0-9._-]")


def is_topic_name(name: str) -> bool:
    """Whether a topic can have this name."""
    return 0 < len(name) <= LONGEST and name not in (".", "..") and only_allowed(name)


def only_allowed(text: str) -> bool:
    """Whether the names of topics can have each of these characters."""
    return not _FORBIDDEN.search(text)


def topic_name(name: str) -> str:
    """The name as Debezium adjusts it: characters that Kafka forbids become `_`."""
    return _FORBIDDEN.sub("_", name)
