"""Functions as PySpark sends them to its Python processes: pickled by its own copy of cloudpickle."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import PySparkRuntimeError


def send_by_value(module: ModuleType) -> None:
    """Send the module's functions and classes whole: processes of Spark cannot import them by its name."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def unpickled(function: Any) -> Any:
    """What Spark's Python processes unpickle of a function in a plan: the function and the type of its rows."""
    try:
        return cloudpickle.loads(bytes(function.command().unsafeArray()))
    except PySparkRuntimeError as error:
        # More than a megabyte is a broadcast, which the driver has in a file.
        wanted = (error.getMessageParameters() or {}).get("variable")
        (broadcast,) = (variable for variable in list(function.broadcastVars()) if str(variable.id()) == wanted)
        return cloudpickle.loads(cloudpickle.loads(Path(broadcast.value().path()).read_bytes()))
