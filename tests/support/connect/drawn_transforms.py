"""Records and transforms of Kafka Connect, drawn by hypothesis."""

from __future__ import annotations

import base64
from typing import Any

from hypothesis import strategies as st
from kafka_transforms import Chosen, Given

from penstock.connect.transforms.definitions import OF_SINKS

KAFKA = "org.apache.kafka.connect.transforms."
DATA = "org.apache.kafka.connect.data."
NAMES = ("a", "b", "c", "d", "e")
FORMATS = (
    "yyyy-MM-dd'T'HH:mm:ss.SSSX",
    "yyyy-MM-dd",
    "yyyyMMddHHmmss",
    "d MMM yyyy h:mm a",
    "EEEE, MMMM d, y G",
    "yy-D k:K",
    "HH:mm z, 'o''clock' ''yyyy Z",
)
TEXTS = (
    "", "a", "-7", "+7", " 7", "300", "99999999999", "1e3", ".5f", "0x1p3", "NaN", "-Infinity", "TRUE", "1_0",
    "2024-02-30", "2024-1-5 later", "20240229235959", "202402", "29 feb 2024 1:05 PM", "Friday, March 1, 5 BC",
    "99-60 24:11", "05:06 GMT+1:30, o'clock '1582 -0200", "2024-02-29T23:59:59.9+01", "1500-01-01", "0-0-0",
)  # fmt: skip
NUMBERS = ("0.0", "-0.0", "1.5", "-0.1", "123456.789", "1e10", "-3e-5", "127.9", "3e38", "-1e300", "NaN", "Infinity")
MILLIS = st.sampled_from([0, 1, -1, 86_400_000, 1_709_251_199_999, -12_219_292_800_001, -62_167_219_200_000, 10**14])


# Schemas, and values of them in JSON.

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for name, bits in INTEGERS.items()},
    "float": st.sampled_from([0.0, 1.5, -0.25, 300.0, 16777216.0]),
    "double": st.sampled_from([float(text) for text in NUMBERS[:-2]]),
    "boolean": st.booleans(),
    "string": st.sampled_from(TEXTS),
    "bytes": st.binary(max_size=3).map(lambda data: base64.b64encode(data).decode()),
}
LOGICAL: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "Date": ("int32", st.integers(-800_000, 50_000)),
    "Time": ("int32", st.integers(0, 86_399_999)),
    "Timestamp": ("int64", MILLIS),
    "Decimal": (
        "bytes",
        st.integers(-(10**6), 10**6).map(lambda n: base64.b64encode(n.to_bytes(8, "big", signed=True)).decode()),
    ),
}
Drawn = tuple[dict[str, Any], st.SearchStrategy[Any]]
"""A schema, and its values."""


@st.composite
def leaves(draw: st.DrawFn) -> Drawn:
    kind = draw(st.sampled_from([*PRIMITIVES, *LOGICAL, "array", "map"]))
    optional = draw(st.booleans())
    if kind in LOGICAL:
        of, values = LOGICAL[kind]
        more = {"parameters": {"scale": "2"}} if kind == "Decimal" else {}
        return {"type": of, "optional": optional, "name": DATA + kind, "version": 1, **more}, values
    if kind == "array":
        items = {"type": "int32", "optional": False}
        return {"type": kind, "items": items, "optional": optional}, st.lists(st.integers(0, 9), max_size=2)
    if kind == "map":
        inner = {"keys": {"type": "string", "optional": False}, "values": {"type": "int8", "optional": True}}
        return {"type": kind, **inner, "optional": optional}, st.dictionaries(st.sampled_from("xy"), st.just(1))
    schema = {"type": kind, "optional": optional}
    if optional and kind not in ("float", "double") and draw(st.booleans()):
        schema["default"] = draw(PRIMITIVES[kind])
    return schema, PRIMITIVES[kind]


@st.composite
def structs(draw: st.DrawFn, depth: int = 0) -> Drawn:
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    inner = st.one_of(leaves(), structs(depth=depth + 1)) if depth < 2 else leaves()
    fields = [(name, *draw(inner)) for name in names]
    schema: dict[str, Any] = {
        "type": "struct",
        "fields": [{**own, "field": name} for name, own, _ in fields],
        "optional": draw(st.booleans()),
    }
    if draw(st.booleans()):
        schema |= {"name": "x.Row", "version": 2, "doc": "words", "parameters": {"p": "1"}}
    values = {name: st.one_of(st.none(), of) if own["optional"] else of for name, own, of in fields}
    return schema, st.fixed_dictionaries(values)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), PRIMITIVES["int64"], PRIMITIVES["double"], PRIMITIVES["string"]),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4)


@st.composite
def parts(draw: st.DrawFn) -> tuple[Any, Any]:
    kind = draw(st.sampled_from(["struct"] * 4 + ["object"] * 3 + ["leaf", "json", "nothing"]))
    if kind == "nothing":
        return None, None
    if kind == "json":
        return None, draw(JSON)
    if kind == "object":
        return None, draw(OBJECTS)
    schema, values = draw(structs() if kind == "struct" else leaves())
    null = schema["optional"] and draw(st.integers(0, 5)) == 0
    return schema, None if null else draw(values)


RECORDS = st.builds(
    Given,
    st.sampled_from(["shop.a", "b-1", "Orders_2"]),
    st.one_of(st.none(), MILLIS.filter(lambda millis: millis >= 0)),
    parts(),
    parts(),
    st.lists(st.tuples(st.sampled_from("hx"), st.sampled_from(["one", "two"])), max_size=2).map(tuple),
)

# Transforms.

FIELD = st.sampled_from([*NAMES, "zz"])
FIELDS = st.lists(FIELD, min_size=1, max_size=2, unique=True).map(",".join)
TYPES = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")
REGEXES = ("(.*)", r"(?<first>[a-z]+)[.-](\w+)", "a|b-1", r"\Qshop.\E.*", "(?i)ORDERS.*", r"[^.]+", r"b(-)(1)\z")
REPLACEMENTS = ("new", "$1-x", r"a\.$2", "${first}_1", "$10", r"\u$0")
CASTS = st.lists(st.tuples(FIELD, st.sampled_from(TYPES)), min_size=1, max_size=3, unique_by=lambda pair: pair[0])
Options = dict[str, st.SearchStrategy[str]]
"""The values of options, by name."""


def one_of(*values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(values)


REQUIRED: dict[str, Options] = {
    "Cast": {"spec": st.one_of(one_of(*TYPES), CASTS.map(lambda pairs: ",".join(map(":".join, pairs))))},
    "TimestampConverter": {"target.type": one_of("string", "unix", "Date", "Time", "Timestamp")},
    "InsertField": {"static.value": one_of("v")},
    "ReplaceField": {},
    "MaskField": {"fields": FIELDS},
    "SetSchemaMetadata": {},
    "ExtractField": {"field": st.one_of(FIELD, one_of("a.b", "c.zz.a", "`a`.b"))},
    "HoistField": {"field": FIELD},
    "Flatten": {},
    "HeaderFrom": {"fields": FIELD, "headers": one_of("h"), "operation": one_of("move", "copy")},
    "ValueToKey": {"fields": FIELDS},
    "InsertHeader": {"header": one_of("i"), "value.literal": one_of("text")},
    "DropHeaders": {"headers": one_of("h", "h,x")},
    "RegexRouter": {"regex": one_of(*REGEXES), "replacement": one_of(*REPLACEMENTS)},
    "TimestampRouter": {},
    "Filter": {},
}
OPTIONAL: dict[str, Options] = {
    "TimestampConverter": {
        "field": FIELD,
        "format": one_of(*FORMATS),
        "unix.precision": one_of("nanoseconds", "microseconds", "milliseconds", "seconds"),
    },
    "InsertField": {
        "topic.field": one_of("t", "a", "t!"),
        "partition.field": one_of("p", "p?"),
        "offset.field": one_of("o", "o!"),
        "timestamp.field": one_of("at", "at?"),
        "static.field": one_of("s"),
    },
    "ReplaceField": {"exclude": FIELDS, "include": one_of("a,b,c"), "renames": one_of("a:A", "a:A,b:B", "c:C")},
    "MaskField": {"replacement": one_of("7", "300", "-1.9", "1e3", "word", "99999999999")},
    "SetSchemaMetadata": {"schema.name": one_of("other"), "schema.version": one_of("7")},
    "ExtractField": {"field.syntax.version": one_of("V1", "V2")},
    "Flatten": {"delimiter": one_of("_", "")},
    "TimestampRouter": {
        "topic.format": one_of("${topic}.${timestamp}"),
        "timestamp.format": one_of("yyyyMMdd", "yyyy-DDD-HH"),
    },
}
HAVE_DEFAULTS = (
    *("Cast", "TimestampConverter", "InsertField", "ReplaceField", "MaskField", "SetSchemaMetadata", "ExtractField"),
    *("HeaderFrom", "ValueToKey"),
)
"""Transforms with the option `replace.null.with.default`."""
ON_ONE_SIDE = {name for name in REQUIRED if f"{KAFKA}{name}$Key" in OF_SINKS.transforms}
PREDICATES = (
    *[None] * 6,
    (f"{KAFKA}predicates.TopicNameMatches", {"pattern": "[a-z].*"}),
    (f"{KAFKA}predicates.HasHeaderKey", {"name": "h"}),
    *[(f"{KAFKA}predicates.RecordIsTombstone", {})] * 2,
)


@st.composite
def steps(draw: st.DrawFn) -> Chosen:
    name = draw(one_of(*REQUIRED, *HAVE_DEFAULTS))
    side = draw(one_of("$Key", "$Value", "$Value")) if name in ON_ONE_SIDE else ""
    options = {option: draw(values) for option, values in REQUIRED[name].items()}
    options |= {option: draw(values) for option, values in OPTIONAL.get(name, {}).items() if draw(st.booleans())}
    if name in HAVE_DEFAULTS and draw(st.booleans()):
        options["replace.null.with.default"] = "false"
    predicate = draw(st.sampled_from(PREDICATES))
    return Chosen(f"{KAFKA}{name}{side}", options, predicate, bool(predicate) and draw(st.booleans()))
