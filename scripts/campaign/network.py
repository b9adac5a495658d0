"""TCP connections that can be cut: proxies in their own thread, which copy bytes of any protocol."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from penstock.local.ports import HOST

Pipe = tuple[asyncio.StreamWriter, asyncio.StreamWriter]


class Proxy:
    """Forwards connections to a local port; `cut` breaks them and refuses new ones until `mend`."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target, self._open = target, True
        self._pipes, self._tasks = set[Pipe](), set[asyncio.Task[None]]()

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Accept no more connections, and end the open ones."""
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks)

    def cut(self) -> None:
        self._open = False
        for pipe in self._pipes:
            for side in pipe:
                side.transport.abort()

    def mend(self) -> None:
        self._open = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        try:
            back, there = await asyncio.open_connection(HOST, self._target)
        except OSError:
            writer.transport.abort()
            return
        pipe, task = (writer, there), asyncio.current_task()
        assert task
        self._pipes.add(pipe)
        self._tasks.add(task)
        try:
            await asyncio.gather(_copy(reader, there), _copy(back, writer))
        finally:
            self._pipes.discard(pipe)
            self._tasks.discard(task)
            for side in pipe:
                side.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    with suppress(OSError):
        if target.can_write_eof() and not target.is_closing():
            target.write_eof()


class Network:
    """All proxies by the name of the part behind them; made by `network`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._proxies = loop, dict[tuple[str, int], Proxy]()

    def port(self, name: str, target: int) -> int:
        """The proxy's port for a target port."""
        if (name, target) not in self._proxies:
            proxy = Proxy(target)
            asyncio.run_coroutine_threadsafe(proxy.listen(), self._loop).result()
            self._proxies[name, target] = proxy
        return self._proxies[name, target].port

    def address(self, name: str, target: str) -> str:
        """The proxy's host:port for a target host:port."""
        return f"{HOST}:{self.port(name, int(target.rpartition(':')[2]))}"

    def cut(self, name: str) -> None:
        self._each(name, Proxy.cut)

    def mend(self, name: str) -> None:
        self._each(name, Proxy.mend)

    async def close(self) -> None:
        for proxy in self._proxies.values():
            await proxy.close()

    def _each(self, name: str, act: Callable[[Proxy], None]) -> None:
        async def all_of_them() -> None:
            for (of, _), proxy in self._proxies.items():
                if of == name:
                    act(proxy)

        asyncio.run_coroutine_threadsafe(all_of_them(), self._loop).result()


@contextmanager
def network() -> Iterator[Network]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="network", daemon=True)
    thread.start()
    try:
        wires = Network(loop)
        try:
            yield wires
        finally:
            asyncio.run_coroutine_threadsafe(wires.close(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
