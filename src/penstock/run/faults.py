"""Why a query failed, and whether a retry can help.

Spark reports an error as a string in Java exceptions. Two parts of it are reliable: the last line of a Python
traceback, which has the full name of Penstock's error class, and the classes in the chain of Java causes.
"""

from __future__ import annotations

import re
import sysconfig
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.sql.streaming.query import StreamingQuery

from penstock.border.spark_refusals import refusal
from penstock.errors import PenstockError, SchemaChanged
from penstock.metrics.delays import SINK_FAILED
from penstock.spark_runtime import running_query
from penstock.spark_runtime.failures import causes, passes
from penstock.spark_runtime.logical_plan import each, nodes
from penstock.wire.errors import DeliveryTimeout, KafkaError, TransactionAbortable

_PLACE = re.compile(r'^\s*File "([^"]+)", line (\d+), in (\S+)', re.MULTILINE)
TRACEBACK = "Traceback (most recent call last)"
_PATHS = sysconfig.get_paths()
_NOT_USERS = *(_PATHS[kind] for kind in ("stdlib", "purelib", "platlib")), str(Path(__file__).parents[1])
# Behind an indented line, as in a traceback: messages of other errors may have such lines, too. PySpark leaves out what
# an error was raised from, so that the error of a sink's stage stands only in the text of `SinkFailed`.
_OURS = re.compile(
    rf"^[ \t]+\S.*\n(?:{re.escape(SINK_FAILED)})?"
    r"(penstock(?:\.\w+)+): (.*(?:\n(?![ \t]*SQLSTATE|[ \t]+at |\n).*)*)",
    re.MULTILINE,
)
_SQLSTATE = re.compile(r"(?<!\s)\s*+SQLSTATE: \w+")
MODULES = frozenset(
    f"penstock.{name}"
    for name in (
        *(
            "checkpoint.hadoop_folder",
            "checkpoint.lease",
            "checkpoint.log",
            "codec.registry",
            "database.access",
            "database.columns",
            "database.requests",
            "database.retrying",
            "durations",
        ),
        *(
            "database.table_catalog",
            "errors",
            "extras",
            "kafka.compacted_topic",
            "kafka.record_view",
            "kafka.topic_reader",
            "query.real_time",
            "run.faults",
        ),
        *("segment.member_tables.delivery_server", "segment.member_tables.delivery_sync", "segment.segment_match"),
        "spark_runtime.failures",
        *("state.change_files", "state.stores", "wire.errors", "wire.fetcher", "wire.groups"),
        "wire.producer.table_receipts",
    )
)
"""The modules whose errors end queries; a text that names another one does not load that."""

_ADVICE = (
    (
        re.compile(r"larger than \d+, which is the value of the max\.request\.size configuration"),
        "raise max.request.size in the sink's options, of a connector producer.override.max.request.size",
    ),
    (
        re.compile("message larger than the max message size the server will accept"),
        "raise max.message.bytes of the topic, or message.max.bytes of all brokers",
    ),
)
"""What to do about messages of Kafka's Java client that do not say it."""

LONGEST_TRACE = 20_000
"""A traceback's end says what happened."""
STACK = 40
"""Lines of a stack of Java; one that overflowed has a thousand, which repeat."""
STOPPED = "Stopped", "Initializing"
"""Spark's status of a query that was stopped, or had nothing more to read; the thread of one that died does not set it.
The second one stays where a query is stopped before its first batch."""
WITHOUT_REASON = "the query's thread ended, and Spark has not kept why: its report of an error failed, too"
NEXT = "Next: look for java.lang.Error in the output of Spark's process"
ANOTHER_TRY = DeliveryTimeout, TransactionAbortable
"""Errors of Penstock's Kafka client that fail one request, but not necessarily a query that is started again."""


@dataclass(frozen=True)
class Fault:
    """A failure as text; `at_once` if the next attempt needs no pause.

    `query` is the name of the query that failed, `trace` what Spark says of it, at most LONGEST_TRACE characters.
    """

    text: str
    retriable: bool
    at_once: bool = False
    query: str = field(default="", compare=False)
    trace: str = field(default="", compare=False)


def of_query(query: StreamingQuery, *, stopped: bool = False) -> Fault | None:
    """The failure that ended this query; None if it runs, was stopped or is finished.

    One that was `stopped` in a batch may end like one that died: where the batch was in Python, Spark looks for the
    interruption in the error's text with an expression that overflows the stack for a long one (`StreamExecution`).
    """
    name = query.name or ""
    # Before the exception: a query that is over has the one that it ends with.
    is_over = not query.isActive
    error = running_query.exception(query)
    if error is None:
        died = is_over and not stopped and not query.status["message"].startswith(STOPPED)
        return Fault(WITHOUT_REASON, False, query=name, trace=f"{WITHOUT_REASON}. {NEXT}") if died else None
    chain = list(causes(error))
    trace = max((text for _, text in chain), key=len, default="").strip()[-LONGEST_TRACE:]
    for _, text in reversed(chain):
        if ours := _from_traceback(text):
            return replace(ours, query=name, trace=trace)
    if said := _java_error(error):
        return Fault(said[0], False, query=name, trace=f"{said[1]}\n{trace}"[:LONGEST_TRACE])
    return Fault(_summary(chain, query), passes(chain), query=name, trace=trace)


def _java_error(error: Any) -> tuple[str, str] | None:
    """The `java.lang.Error` of a chain of causes, as a line and with its stack; None if there is none.

    Spark's message does not name it: an error of the JVM often has no text.
    """
    innermost = None
    while error is not None:
        # Spark's and Scala's assertions have a text, and say what they are.
        if _is_a(error, "java.lang.Error") and not _is_a(error, "java.lang.AssertionError"):
            innermost = error
        error = error.getCause()
    if innermost is None:
        return None
    said = str(innermost.toString()).partition("\n")[0]
    stack = [f"  at {frame.toString()}" for frame in list(innermost.getStackTrace())[:STACK]]
    return said, "\n".join([said, *stack])


def _is_a(error: Any, name: str) -> bool:
    kind = error.getClass()
    while kind is not None and kind.getName() != name:
        kind = kind.getSuperclass()
    return kind is not None


def of_error(error: PenstockError) -> Fault:
    return Fault(str(error), error.retriable, isinstance(error, SchemaChanged))


def of_spark(error: PySparkException | Py4JJavaError, where: str) -> PenstockError:
    """Spark's error as a PenstockError: the original one, if a Python process of Spark raised it.

    It is for all errors of Spark that a pipeline's file causes while its queries are built and started.
    """
    if isinstance(error, Py4JJavaError):
        # PySpark passes most Java exceptions unchanged.
        error = convert_exception(error.java_exception)
    said = str(error)
    if ours := _from_traceback(said):
        return as_error(ours, where)
    if TRACEBACK in said:
        return PenstockError(_last_line(said), where=where)
    refused = refusal(error)
    return PenstockError(refused.what, where=where, next=refused.next)


def as_error(fault: Fault, where: str) -> PenstockError:
    kind = SchemaChanged if fault.at_once else RetriableFailure if fault.retriable else PenstockError
    return kind(fault.text, where=where)


class RetriableFailure(PenstockError):
    """An error that may not occur again when the query is started again."""

    retriable = True


def _from_traceback(text: str) -> Fault | None:
    """The last of Penstock's errors at the end of a Python traceback in `text`."""
    for name, message in reversed(_OURS.findall(text)):
        module, _, attribute = name.rpartition(".")
        kind = getattr(import_module(module), attribute, None) if module in MODULES else None
        if isinstance(kind, type) and issubclass(kind, PenstockError):
            return Fault(message.strip(), kind.retriable, issubclass(kind, SchemaChanged))
        if isinstance(kind, type) and issubclass(kind, KafkaError):
            return Fault(message.strip(), kind.retriable or issubclass(kind, ANOTHER_TRY))
    return None


def _summary(chain: list[tuple[set[str], str]], query: StreamingQuery) -> str:
    """The innermost message; for an error in a Python function its last line, which names the error, and its place."""
    texts = [text for _, text in chain if text.strip()]
    if texts and TRACEBACK in texts[-1]:
        return _last_line(texts[-1], query)
    said = next(iter(_lines(texts[-1])), "") if texts else ""
    if said and not said.endswith("terminated with exception:"):
        return advised(said)
    died = any("java.io.EOFException" in kinds for kinds, _ in chain)
    return "a Python process of Spark ended, for example because it was killed" if died else "Spark gave no reason"


def advised(said: str) -> str:
    """The message of another program with what to do next, where that is known."""
    advice = (text for pattern, text in _ADVICE if pattern.search(said))
    return next((f"{said.rstrip('.')}. Next: {text}" for text in advice), said)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in _SQLSTATE.sub("", text).splitlines() if line.strip()]


def _last_line(text: str, query: StreamingQuery | None = None) -> str:
    """The last line of a Python traceback and the user's function, with the columns that the query gives to it."""
    last = _lines(text)[-1].removeprefix(SINK_FAILED)
    users = [place for place in _PLACE.findall(text) if not place[0].startswith((*_NOT_USERS, "<"))]
    if not users:
        return last
    file, line, function = users[-1]
    called = next((name + columns for _, _, name in users if query and (columns := _columns(query, name))), "")
    place = f"in {function}, {file}, line {line}"
    return f"{last}, {place}" + (f", called as {called}" if called else "")


def _columns(query: StreamingQuery, function: str) -> str:
    """The columns that a query gives to a function, in parentheses; empty if it is not a function of columns."""
    plan = running_query.plan(query)
    for node in nodes(plan):
        for expression in each(node.expressions()):
            for part in nodes(expression):
                if part.getClass().getSimpleName() == "PythonUDF" and part.name() == function:
                    return f"({', '.join(str(argument.sql()) for argument in each(part.children()))})"
    return ""
