"""The program of the process that reads records and state for the console; `reader_process` describes what it says.

It imports what a call needs at its first call.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any

from penstock.codec import exact_json
from penstock.console.reading.reader_process import AHEAD, BEAT, LONGEST, UNEXPECTED
from penstock.console.reading.topic_list import CHECK_KAFKA
from penstock.errors import PenstockError
from penstock.wire.errors import KafkaError

CALLS = {
    "records": "topic_messages.page",
    "tail": "topic_messages.tail",
    "download": "topic_messages.download",
    "dead_letters": "dead_letter_topics.page",
    "count_dead_letters": "dead_letter_topics.counts",
    "send_letters": "dead_letter_sending.send",
    "states": "checkpoint_states.listed",
    "state": "checkpoint_states.rows",
}
"""Functions of this package by the name of their call: coroutines with a result, or generators of items."""

Send = Callable[[dict[str, Any]], None]


class Calls:
    """The calls under way."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._room: dict[int, asyncio.Semaphore] = {}

    def take(self, message: dict[str, Any]) -> None:
        id = message["id"]
        if "call" in message:
            self._room[id] = asyncio.Semaphore(AHEAD)
            task = self._tasks[id] = asyncio.create_task(self._answer(id, message["call"], message["args"]))
            # Not in the task itself, which may be cancelled before it begins.
            task.add_done_callback(lambda _: self._forget(id))
        elif "more" in message and id in self._room:
            self._room[id].release()
        elif "end" in message and id in self._tasks:
            self._tasks[id].cancel()

    async def _answer(self, id: int, call: str, args: dict[str, Any]) -> None:
        try:
            module, _, name = CALLS[call].partition(".")
            function = getattr(await asyncio.to_thread(import_module, f"penstock.console.reading.{module}"), name)
            answer = function(**args)
            if isinstance(answer, AsyncIterator):
                async for item in answer:
                    await self._room[id].acquire()
                    self._send({"id": id, "item": item})
                self._send({"id": id, "done": None})
            else:
                self._send({"id": id, "done": await answer})
        except KafkaError as error:
            self._fail(id, error, str(error), f"Kafka at {args['kafka']['servers']}", error.next or CHECK_KAFKA)
        except PenstockError as error:
            self._fail(id, error, error.what, error.where, error.next)
        except Exception as error:
            what, step = f"{type(error).__name__}: {error}", "this is an error of penstock: report it"
            self._fail(id, error, what, call, step, kind=UNEXPECTED)

    def _forget(self, id: int) -> None:
        del self._tasks[id], self._room[id]

    def _fail(self, id: int, error: Exception, what: str, where: str, next: str, kind: str = "") -> None:
        retriable = bool(getattr(error, "retriable", False))
        failure = {
            "kind": kind or type(error).__name__,
            "retriable": retriable,
            "what": what,
            "where": where,
            "next": next,
        }
        self._send({"id": id, "error": failure})


async def main() -> None:
    """Answer calls until the pipe of requests ends."""
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader(limit=LONGEST)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    # What a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, answers)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    calls = Calls(lambda message: writer.write(line_of(message)))
    beating = asyncio.create_task(_beat(writer))
    while line := await requests.readline():
        calls.take(json.loads(line))
    beating.cancel()


async def _beat(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(line_of({"id": 0}))
        await asyncio.sleep(BEAT)


def _text(message: dict[str, Any]) -> str:
    try:
        return exact_json.dumps(message)
    except ValueError:  # a number that is not finite, which both ends read
        return json.dumps(message, ensure_ascii=False)


def line_of(message: dict[str, Any]) -> bytes:
    """The message as a line, or an error as one if it is longer than the console reads."""
    # Escapes would make three bytes of each byte of an emoji. JSON of a record may have half of one.
    line = _text(message).encode("utf-8", "surrogatepass") + b"\n"
    if len(line) <= LONGEST:
        return line
    error = {
        "kind": "TooLarge",
        "retriable": False,
        "what": f"the answer has {len(line)} bytes, more than {LONGEST}",
        "where": "",
        "next": "ask for fewer records with limit=",
    }
    return json.dumps({"id": message["id"], "error": error}).encode() + b"\n"


if __name__ == "__main__":
    asyncio.run(main())
