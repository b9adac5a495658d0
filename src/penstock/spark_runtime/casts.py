"""What to write in a frame so that a column gets another type and keeps its values.

Spark's cast reads numbers as seconds, and goes through the fields of structs by position: an advice to cast would store
other values. So numbers become times by their unit, and structs by the names of their fields.
"""

from __future__ import annotations

from pyspark.sql import types as st

INTEGRAL = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
FRACTIONAL = (st.FloatType, st.DoubleType, st.DecimalType)
NESTED = (st.StructType, st.ArrayType, st.MapType)
TIMES = (st.TimestampType, st.TimestampNTZType)


def advice(name: str, given: st.DataType, wanted: st.DataType) -> str:
    """How to make `wanted` of the column `name`, as code for PySpark; "make it a ..." if Spark has no conversion."""
    plain = f"F.col({_text(name if name.isidentifier() else '`' + name.replace('`', '``') + '`')})"
    made = _converted(plain, given, wanted)
    if made is None:
        return f"make it {wanted.simpleString()} in the frame"
    told = f"frame.withColumn({_text(name)}, {made})"
    if made == _cast(plain, wanted):
        return f"cast it: {told}"
    return f"convert it: {told}{_unit(given, wanted)}"


def _converted(column: str, given: st.DataType, wanted: st.DataType) -> str | None:
    if given == wanted:
        return column
    if isinstance(given, NESTED) or isinstance(wanted, NESTED):
        return _nested(column, given, wanted)
    if isinstance(given, (*INTEGRAL, *FRACTIONAL)):
        return _number(column, given, wanted)
    if isinstance(given, (st.DateType, *TIMES)) and isinstance(wanted, (*INTEGRAL, *FRACTIONAL)):
        found = f"F.unix_date({column})" if isinstance(given, st.DateType) else f"F.unix_millis({column})"
        own = st.IntegerType if isinstance(given, st.DateType) else st.LongType
        return found if isinstance(wanted, own) else _cast(found, wanted)
    return _cast(column, wanted)


def _number(column: str, given: st.DataType, wanted: st.DataType) -> str | None:
    whole = column if isinstance(given, INTEGRAL) else f'{column}.cast("bigint")'
    if isinstance(wanted, st.TimestampType):
        return f"F.timestamp_millis({whole})"
    if isinstance(wanted, st.TimestampNTZType):
        return _cast(f"F.timestamp_millis({whole})", wanted)
    if isinstance(wanted, st.DateType):
        return f'F.date_from_unix_date({column}.cast("int"))'
    if isinstance(given, FRACTIONAL) and isinstance(wanted, INTEGRAL):
        return _cast(f"F.round({column})", wanted)
    return None if isinstance(wanted, st.BinaryType) else _cast(column, wanted)


def _nested(column: str, given: st.DataType, wanted: st.DataType) -> str | None:
    if isinstance(wanted, st.StringType):
        return f"F.to_json({column})"
    if isinstance(given, st.StructType) and isinstance(wanted, st.StructType):
        return _struct(column, given, wanted)
    if isinstance(given, st.ArrayType) and isinstance(wanted, st.ArrayType):
        return _each(column, "transform", "x", given.elementType, wanted.elementType)
    if isinstance(given, st.MapType) and isinstance(wanted, st.MapType):
        keys = _each(column, "transform_keys", "k, v", given.keyType, wanted.keyType)
        return keys and _each(keys, "transform_values", "k, v", given.valueType, wanted.valueType)
    return None


def _struct(column: str, given: st.StructType, wanted: st.StructType) -> str | None:
    fields = []
    for field in wanted:
        there = f"{column}.getField({_text(field.name)})"
        if field.name in given.names:
            made = _converted(there, given[field.name].dataType, field.dataType)
        else:
            made = _cast("F.lit(None)", field.dataType)
        if made is None:
            return None
        fields.append(f"{made}.alias({_text(field.name)})")
    # A null stays one: a struct of its fields would be a value.
    return f"F.when({column}.isNotNull(), F.struct({', '.join(fields)}))"


def _each(column: str, function: str, names: str, given: st.DataType, wanted: st.DataType) -> str | None:
    """A function of each element, key or value; none if they need not change."""
    one = names[0] if function == "transform_keys" else names[-1]
    made = _converted(one, given, wanted)
    if made is None or made == one:
        return made and column
    return f"F.{function}({column}, lambda {names}: {made})"


def _unit(given: st.DataType, wanted: st.DataType) -> str:
    """What the code takes for granted."""
    if isinstance(given, (*INTEGRAL, *FRACTIONAL)) and isinstance(wanted, TIMES):
        return ", if the numbers are milliseconds; for others use F.timestamp_seconds or F.timestamp_micros"
    if isinstance(given, (*INTEGRAL, *FRACTIONAL)) and isinstance(wanted, st.DateType):
        return ', if the numbers are days since 1970; milliseconds are F.timestamp_millis(...).cast("date")'
    if isinstance(given, TIMES) and isinstance(wanted, (*INTEGRAL, *FRACTIONAL)):
        return " for milliseconds since 1970, or use F.unix_seconds or F.unix_micros"
    return ""


def _cast(column: str, wanted: st.DataType) -> str:
    return f'{column}.cast("{wanted.simpleString()}")'


def _text(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
