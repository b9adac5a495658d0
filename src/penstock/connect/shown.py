"""What the REST API shows of configurations: definitions with values and errors, and secrets hidden."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.connect.checks import Checked
from penstock.connect.definition import HIDDEN, Property, as_text
from penstock.connect.properties import properties
from penstock.connect.providers import REFERENCE

Json = dict[str, Any]

SECRET = re.compile(r"password|secret|sasl\.jaas\.config|\.key$|basic\.auth\.user\.info|token", re.IGNORECASE)
_SECRETS = frozenset(each.name for each in properties() if each.type == "PASSWORD")


def masked(config: Mapping[str, str]) -> dict[str, str]:
    """The configuration with its secrets hidden; a reference to a secret shows only where it stands."""
    hidden = {name for name, text in config.items() if is_secret(name) and not REFERENCE.fullmatch(text)}
    return {name: HIDDEN if name in hidden else text for name, text in config.items()}


def is_secret(name: str) -> bool:
    """Whether a property holds what nobody may see."""
    return name in _SECRETS or bool(SECRET.search(name))


def definitions(found: Iterable[Property]) -> list[Json]:
    """Properties as Connect's REST API defines them."""
    orders: dict[str, int] = {}
    described = []
    for each in found:
        orders[each.group] = orders.get(each.group, 0) + 1
        described.append(each.described(orders[each.group]))
    return described


def validation(name: str, checked: Checked) -> Json:
    """The answer to a request to validate a configuration."""
    known = [
        {"definition": definition, "value": _value(each, checked)}
        for each, definition in zip(checked.definitions, definitions(checked.definitions), strict=True)
    ]
    named = {each.name for each in checked.definitions}
    others = sorted({*checked.unknown, *checked.errors} - named)
    unknown = [Property(each, "STRING", None, checked.unknown.get(each, ""), group="Unknown") for each in others]
    known += [
        {"definition": definition, "value": _value(each, checked)}
        for each, definition in zip(unknown, definitions(unknown), strict=True)
    ]
    return {
        "name": name,
        "error_count": len(checked.messages),
        "groups": list(dict.fromkeys(each["definition"]["group"] for each in known)),
        "configs": known,
    }


def _value(each: Property, checked: Checked) -> Json:
    text = checked.config.get(each.name)
    if text is None:
        text = as_text(checked.values.get(each.name))
    return {
        "name": each.name,
        "value": HIDDEN if text is not None and is_secret(each.name) else text,
        "recommended_values": list(each.allowed),
        "errors": checked.errors.get(each.name, []),
        "visible": True,
    }
