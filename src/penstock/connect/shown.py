"""What the REST API shows of configurations: definitions with values and errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.connect.checks import Checked
from penstock.connect.definition import REQUIRED, Property, as_text

Json = dict[str, Any]


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
    text = checked.shown.get(each.name)
    return {
        "name": each.name,
        "value": as_text(each.default) if text is None and each.default is not REQUIRED else text,
        "recommended_values": list(each.allowed),
        "errors": checked.errors.get(each.name, []),
        "visible": True,
    }
