"""Whether a configuration's regular expressions are ones of Java, and which whole texts they match.

They run in `java.regex`, which bounds their time. Java itself only says whether it knows them: its matcher cannot be
interrupted, and its stack overflows, which ends Spark's process.
"""

from __future__ import annotations

from collections.abc import Iterable

from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException

from penstock.connect.java import regex as java_regex
from penstock.connect.java.bounded_regex import Overrun
from penstock.errors import PenstockError
from penstock.spark_runtime.jvm import jvm_of_process

# PySpark raises Java's IllegalArgumentException as its own.
JAVA_ERRORS = (Py4JJavaError, IllegalArgumentException)
CORRECT = "correct the expression of this transform or predicate"


def regex_problem(pattern: str) -> str | None:
    """Why a regular expression is not one of Java, or cannot be used, or None.

    Without a Spark session nobody can ask Java, whose reasons are better.
    """
    jvm = jvm_of_process()
    try:
        if jvm is not None:
            jvm.java.util.regex.Pattern.compile(pattern)
        java_regex.compiled(pattern)
    except JAVA_ERRORS as error:
        return str(getattr(error, "java_exception", error)).partition("\n")[0]
    except ValueError as error:
        return str(error)
    return None


def regex_check(pattern: str) -> str | None:
    """The check of a property that is a Java regular expression, in Kafka's words."""
    problem = regex_problem(pattern)
    return f"Invalid regex: {problem}" if problem else None


def fits_whole(pattern: str, text: str) -> bool:
    """Whether a Java regular expression, which is valid, matches the whole text."""
    return bool(fitting(pattern, [text]))


def fitting(pattern: str, texts: Iterable[str]) -> list[str]:
    """The texts that a Java regular expression, which is valid, matches as a whole.

    Raises PenstockError if that takes too long.
    """
    try:
        return java_regex.fitting(pattern, texts)
    except Overrun as error:
        raise PenstockError(str(error), where="the connector's configuration", next=CORRECT) from None
