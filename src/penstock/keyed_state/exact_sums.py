"""Groups of Arrow tables whose sums and means are exact: decimals keep each digit, and nothing wraps around.

Arrow adds integers in 64 bits and decimals in 128, and what does not fit wraps around. So columns whose sums might not
fit are added in 256 bits. A sum that its type has no room for is an error, as with Spark's own sum in ANSI mode: as a
null it would be left out of the next sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError

DIGITS = 38
"""The most digits of Spark's decimals, and of Arrow's with 128 bits."""
WIDE = 76
"""The most digits of Arrow's decimals with 256 bits."""
COUNT_DIGITS = 19
"""The digits of a number of rows."""
EXTRA = 4
"""The digits that a mean of decimals has behind those of its values."""

Asked = tuple[str, str, pa.DataType]
"""A column, the function of it, and the type of its results."""


def grouped(rows: pa.Table, keys: Sequence[str], asked: Mapping[str, Asked]) -> pa.Table:
    """One row for each value of `keys`: the keys, and the results by name. Raises PenstockError for a sum too large."""
    for source in {source for source, function, _ in asked.values() if function == "sum"}:
        if may_overflow(rows[source]):
            rows = rows.set_column(rows.column_names.index(source), source, _widened(rows[source]))
    calls = list(dict.fromkeys((source, function) for source, function, _ in asked.values()))
    aggregated = rows.group_by(list(keys), use_threads=False).aggregate(calls)
    results = {
        name: _narrowed(aggregated[f"{source}_{function}"], kind, name)
        for name, (source, function, kind) in asked.items()
    }
    return pa.table({key: aggregated[key] for key in keys} | results)


def may_overflow(values: pa.ChunkedArray) -> bool:
    """Whether a sum of these numbers may need more than 64 bits, or more than 38 digits."""
    integers = pa.types.is_integer(values.type)
    if not integers and not pa.types.is_decimal(values.type):
        return False
    bounds = [bound for bound in pc.min_max(values).as_py().values() if bound]
    if integers:
        return max((abs(bound).bit_length() for bound in bounds), default=0) + len(values).bit_length() > 63
    digits = max((bound.adjusted() + 1 + values.type.scale for bound in bounds), default=0)
    return digits + len(str(len(values))) > DIGITS


def _widened(values: pa.ChunkedArray) -> pa.ChunkedArray:
    scale = values.type.scale if pa.types.is_decimal(values.type) else 0
    return values.cast(pa.decimal256(WIDE, scale))


def _narrowed(values: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        if not pa.types.is_decimal(values.type):
            raise
    raise PenstockError(
        f"a sum has more digits than {_spark(kind)} has room for",
        where=name,
        next="leave out values that are too large, or sum a cast, such as sum(cast(x as double)), under another name=",
    )


def _spark(kind: pa.DataType) -> str:
    return "bigint" if pa.types.is_integer(kind) else f"decimal({kind.precision},{kind.scale})"


def divided(total: pa.ChunkedArray, count: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """The mean, null without values. That of decimals has four more digits and is rounded half up, as Spark's avg."""
    count = pc.if_else(pc.equal(count, 0), None, count)
    if not pa.types.is_decimal(total.type):
        return pc.divide(total.cast(pa.float64()), count.cast(pa.float64()))
    scale = min(DIGITS, total.type.scale + EXTRA)
    # The quotient has some 20 digits more, and what is behind them does not change how it is rounded.
    wide = total.cast(pa.decimal256(DIGITS, total.type.scale))
    mean = pc.divide(wide, count.cast(pa.decimal256(COUNT_DIGITS, 0)))
    return _narrowed(pc.round(mean, scale, "half_towards_infinity"), pa.decimal128(DIGITS, scale), name)
