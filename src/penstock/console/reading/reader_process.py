"""The process that reads records and state for the console, and what the console says to it.

Reading records loads Arrow and compiled loops, which take more memory than all of the console, and reads bytes that
anybody may have written. So a process does it that is started at the first need and ends after a minute without one. It
ends with the console, too, since it reads its requests from a pipe. Both sides send lines of JSON:

    {"id": 1, "call": "records", "args": {...}}       {"id": 1, "item": ...}    any number of times
    {"id": 1, "more": true}, {"id": 1, "end": true}   {"id": 1, "done": ...}    or {"id": 1, "error": {...}}
                                                      {"id": 0}                 every `BEAT` seconds: it lives

A call may have `AHEAD` items under way; each "more" allows another one. So a page that reads slowly stops its own call
and no other. A process that has sent nothing for `SILENT` seconds hangs, and is killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from penstock.codec import exact_json
from penstock.errors import PenstockError

log = logging.getLogger(__name__)

AHEAD = 4
LONGEST = 64 << 20
"""The most bytes of a line; the process sends an error instead of a longer one."""
BEAT, SILENT = 2.0, 30.0
"""Seconds between two signs of life, and without one."""
GRACE = 2.0
"""Seconds for the process to end when its requests have ended."""
IDLE = 60.0
"""Seconds without a call after which the process ends."""
MOST_CALLS = 16
"""The most calls at a time."""
UNEXPECTED = "Unexpected"
"""The kind of an error that is one of penstock's own."""
ENDED = "ReaderEnded"
"""The kind of an error that says that the process has ended, whatever it had done by then."""
PROGRAM = "penstock.console.reading.reader_program"


class ReaderBusy(PenstockError):
    """There are as many calls as the process may have, or it has ended."""

    retriable = True


class ReaderError(PenstockError):
    """An error of the process; `kind` is the name of its class there."""

    def __init__(self, kind: str, retriable: bool, what: str, where: str, next: str) -> None:
        super().__init__(what, where=where, next=next)
        self.kind, self.retriable = kind, retriable


class ReaderProcess:
    """Starts the process when it is needed; belongs to one event loop."""

    def __init__(self, idle: float = IDLE, silent: float = SILENT) -> None:
        self._idle, self._silent = idle, silent
        self._process: asyncio.subprocess.Process | None = None
        self._answers: dict[int, asyncio.Queue[dict[str, Any]]] = {}
        self._number = 0
        self._starting = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._ending: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The id of the running process."""
        return self._process.pid if self._process is not None else None

    async def call(self, call: str, /, **args: Any) -> Any:
        """The result of a call without items."""
        result = None
        async for answer in self._called(call, args):
            result = answer.get("done")
        return result

    async def items(self, call: str, /, **args: Any) -> AsyncGenerator[Any, None]:
        """The items of a call, as they come; closing the generator ends the call."""
        async for answer in self._called(call, args):
            if "item" in answer:
                yield answer["item"]

    async def close(self) -> None:
        """End the process, and wait for its end."""
        self.end()
        if self._reading is not None:
            await self._reading

    async def _called(self, name: str, args: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        if len(self._answers) >= MOST_CALLS:
            raise ReaderBusy(f"{MOST_CALLS} requests are being answered, which is the most", next="try again")
        self._number += 1
        id = self._number
        answers = self._answers[id] = asyncio.Queue()
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        finished = False
        try:
            await self._start()
            self._send({"id": id, "call": name, "args": args})
            while not finished:
                answer = await answers.get()
                finished = "item" not in answer
                if "error" in answer:
                    raise ReaderError(**answer["error"])
                yield answer
                if not finished:
                    self._send({"id": id, "more": True})
        finally:
            del self._answers[id]
            if not finished:
                self._send({"id": id, "end": True})
            if not self._answers:
                self._ending = asyncio.get_running_loop().call_later(self._idle, self.end)

    async def _start(self) -> None:
        async with self._starting:
            if self._process is not None:
                return
            if self._reading is not None:
                await self._reading
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", PROGRAM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LONGEST,
                # Ctrl-C in a terminal goes to the console, which ends the process.
                start_new_session=True,
            )
            self._reading = asyncio.create_task(self._read(self._process))

    def _send(self, message: dict[str, Any]) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def end(self) -> None:
        """End the process and its calls; a later call starts another one."""
        if self._ending is not None:
            self._ending.cancel()
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            asyncio.get_running_loop().call_later(GRACE, _kill, process)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hand out the answers of a process until it ends; an error of it is not one of the process that follows."""
        why = ""
        try:
            await self._hand_out(process)
        except TimeoutError:
            why = f"the process that reads records did nothing for {self._silent:g} s and was ended"
        except Exception:
            log.exception("an answer of the process that reads records cannot be read")
        finally:
            # Not terminated: a process that is stopped would not see it.
            _kill(process)
            code = await process.wait()
            if self._process is process:
                self._process = None
            ended = {
                "kind": ENDED,
                "retriable": True,
                "what": why or f"the process that reads records has ended with code {code}",
                "where": "",
                "next": "try again; if it ends again, see what the console printed",
            }
            for answers in self._answers.values():
                answers.put_nowait({"error": ended})

    async def _hand_out(self, process: asyncio.subprocess.Process) -> None:
        """Raises TimeoutError if the process hangs."""
        assert process.stdout is not None
        while True:
            async with asyncio.timeout(self._silent):
                line = await process.stdout.readline()
            if not line:
                return
            answer = exact_json.loads(line, constants=True)
            if (answers := self._answers.get(answer["id"])) is not None:
                answers.put_nowait(answer)


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
