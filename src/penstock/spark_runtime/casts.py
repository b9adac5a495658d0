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


def advice(name: str, actual: st.DataType, wanted: st.DataType) -> str:
    """How to make `wanted` of the column `name`, as code for PySpark; "make it a ..." if Spark has no conversion."""
    plain = f"F.col({_text(name if name.isidentifier() else '`' + name.replace('`', '``') + '`')})"
    expression = _converted(plain, actual, wanted)
    if expression is None:
        return f"make it {wanted.simpleString()} in the frame"
    code = f"frame.withColumn({_text(name)}, {expression})"
    if expression == _cast(plain, wanted):
        return f"cast it: {code}"
    return f"convert it: {code}{_unit(actual, wanted)}"


def _converted(column: str, actual: st.DataType, wanted: st.DataType) -> str | None:
    if actual == wanted:
        return column
    if isinstance(actual, NESTED) or isinstance(wanted, NESTED):
        return _nested(column, actual, wanted)
    if isinstance(actual, (*INTEGRAL, *FRACTIONAL)):
        return _number(column, actual, wanted)
    if isinstance(actual, (st.DateType, *TIMES)) and isinstance(wanted, (*INTEGRAL, *FRACTIONAL)):
        since_epoch = f"F.unix_date({column})" if isinstance(actual, st.DateType) else f"F.unix_millis({column})"
        own = st.IntegerType if isinstance(actual, st.DateType) else st.LongType
        return since_epoch if isinstance(wanted, own) else _cast(since_epoch, wanted)
    return _cast(column, wanted)


def _number(column: str, actual: st.DataType, wanted: st.DataType) -> str | None:
    whole = column if isinstance(actual, INTEGRAL) else f'{column}.cast("bigint")'
    if isinstance(wanted, st.TimestampType):
        return f"F.timestamp_millis({whole})"
    if isinstance(wanted, st.TimestampNTZType):
        return _cast(f"F.timestamp_millis({whole})", wanted)
    if isinstance(wanted, st.DateType):
        return f'F.date_from_unix_date({column}.cast("int"))'
    if isinstance(actual, FRACTIONAL) and isinstance(wanted, INTEGRAL):
        return _cast(f"F.round({column})", wanted)
    return None if isinstance(wanted, st.BinaryType) else _cast(column, wanted)


def _nested(column: str, actual: st.DataType, wanted: st.DataType) -> str | None:
    if isinstance(wanted, st.StringType):
        return f"F.to_json({column})"
    if isinstance(actual, st.StructType) and isinstance(wanted, st.StructType):
        return _struct(column, actual, wanted)
    if isinstance(actual, st.ArrayType) and isinstance(wanted, st.ArrayType):
        return _each(column, "transform", "x", actual.elementType, wanted.elementType)
    if isinstance(actual, st.MapType) and isinstance(wanted, st.MapType):
        keys = _each(column, "transform_keys", "k, v", actual.keyType, wanted.keyType)
        return keys and _each(keys, "transform_values", "k, v", actual.valueType, wanted.valueType)
    return None


def _struct(column: str, actual: st.StructType, wanted: st.StructType) -> str | None:
    fields = []
    for field in wanted:
        there = f"{column}.getField({_text(field.name)})"
        if field.name in actual.names:
            expression = _converted(there, actual[field.name].dataType, field.dataType)
        else:
            expression = _cast("F.lit(None)", field.dataType)
        if expression is None:
            return None
        fields.append(f"{expression}.alias({_text(field.name)})")
    # A null stays one: a struct of its fields would be a value.
    return f"F.when({column}.isNotNull(), F.struct({', '.join(fields)}))"


def _each(column: str, function: str, names: str, actual: st.DataType, wanted: st.DataType) -> str | None:
    """A function of each element, key or value; none if they need not change."""
    variable = names[0] if function == "transform_keys" else names[-1]
    expression = _converted(variable, actual, wanted)
    if expression is None or expression == variable:
        return expression and column
    return f"F.{function}({column}, lambda {names}: {expression})"


def _unit(actual: st.DataType, wanted: st.DataType) -> str:
    """What the code takes for granted."""
    if isinstance(actual, (*INTEGRAL, *FRACTIONAL)) and isinstance(wanted, TIMES):
        return ", if the numbers are milliseconds; for others use F.timestamp_seconds or F.timestamp_micros"
    if isinstance(actual, (*INTEGRAL, *FRACTIONAL)) and isinstance(wanted, st.DateType):
        return ', if the numbers are days since 1970; milliseconds are F.timestamp_millis(...).cast("date")'
    if isinstance(actual, TIMES) and isinstance(wanted, (*INTEGRAL, *FRACTIONAL)):
        return " for milliseconds since 1970, or use F.unix_seconds or F.unix_micros"
    return ""


def _cast(column: str, wanted: st.DataType) -> str:
    return f'{column}.cast("{wanted.simpleString()}")'


def _text(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
