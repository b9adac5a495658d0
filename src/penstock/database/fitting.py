"""Which Spark types fit a CQL type without loss, and the cast to the type that is encoded."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F, types as st

from penstock.errors import PenstockError
from penstock.schema import CqlType, spark_type

_INTEGERS: tuple[type[st.DataType], ...] = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
# Types that fit in addition to `spark_type`: they are cast without loss.
_ALSO: dict[str, tuple[type[st.DataType], ...]] = {
    "bigint": _INTEGERS,
    "int": _INTEGERS[:3],
    "smallint": _INTEGERS[:2],
    "time": _INTEGERS,
    "varint": _INTEGERS,
    "decimal": (*_INTEGERS, st.DecimalType),
    "double": (*_INTEGERS[:3], st.FloatType),
    "float": _INTEGERS[:2],
    "ascii": (st.VarcharType, st.CharType),
    "text": (st.VarcharType, st.CharType),
    "varchar": (st.VarcharType, st.CharType),
}


def require_fit(frame: DataFrame, name: str, kind: CqlType, where: str) -> None:
    """Raise PenstockError if the type of the frame's column does not fit."""
    given, wanted = frame.schema[name].dataType, spark_type(kind)
    if not fits(given, kind):
        raise PenstockError(
            f"column {name} is {given.simpleString()}, but in the table it is {kind}",
            where=where,
            next=f'cast it: frame.withColumn("{name}", F.col("{name}").cast("{wanted.simpleString()}"))',
        )


def fits(given: st.DataType, kind: CqlType) -> bool:
    """Whether every value of a Spark type fits the CQL type; strings for uuid, inet and so on are checked later."""
    wanted = spark_type(kind)
    if isinstance(given, _ALSO.get(kind.name, ())):
        return not (kind.name == "varint" and isinstance(given, st.DecimalType) and given.scale)
    if isinstance(given, st.ArrayType) and isinstance(wanted, st.ArrayType):
        return fits(given.elementType, kind.args[0])
    if isinstance(given, st.MapType) and isinstance(wanted, st.MapType):
        return fits(given.keyType, kind.args[0]) and fits(given.valueType, kind.args[1])
    if isinstance(given, st.StructType) and isinstance(wanted, st.StructType):
        pairs = zip(given.fields, kind.args, strict=False)
        return given.names == wanted.names and all(fits(field.dataType, arg) for field, arg in pairs)
    return given == wanted


def canonical(frame: DataFrame, name: str, kind: CqlType) -> Column:
    """The column, cast to the Spark type that is encoded for the table."""
    wanted = spark_type(kind)
    quoted = F.col("`" + name.replace("`", "``") + "`")
    return quoted if frame.schema[name].dataType == wanted else quoted.cast(wanted)
