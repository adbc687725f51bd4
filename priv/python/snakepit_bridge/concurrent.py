"""Many calls at a time: an event loop in the main thread, and a task for each."""

from __future__ import annotations

import asyncio
import threading

from . import channel, codec, worker
from .serve import Server, SessionLost, described

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def serve(server: Server) -> None:
    """Returns when the BEAM has closed its end."""
    loop = server.loop or asyncio.new_event_loop()
    try:
        loop.run_until_complete(_Loop(server).run())
    finally:
        loop.close()


class _Loop:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.channel = server.channel
        self.tasks: dict[bytes, asyncio.Task[None]] = {}
        #: Of each stream, its task and what it waits for when it has no credit.
        self.streams: dict[bytes, tuple[asyncio.Task[Any], asyncio.Event]] = {}
        self.ended = asyncio.Event()
        self.reading = False

    async def run(self) -> None:
        self.loop = loop = asyncio.get_running_loop()
        self.channel.on_news = lambda key: self.soon(self.news, key)
        self.channel.on_request = lambda: self.soon(self.begin)
        loop.add_reader(self.channel.reader, self.readable)
        try:
            self.begin()
            await self.ended.wait()
        finally:
            loop.remove_reader(self.channel.reader)

    def readable(self) -> None:
        self.reading = True
        try:
            self.channel.poll()
        finally:
            self.reading = False
        self.begin()

    def soon(self, function: Any, *args: Any) -> None:
        """What was read in another thread or in a signal handler has to wake the loop."""
        if self.reading and threading.current_thread() is threading.main_thread():
            if function == self.news:
                self.news(*args)
        else:
            self.loop.call_soon_threadsafe(function, *args)

    def begin(self) -> None:
        if self.channel.closed:
            self.ended.set()
        requests = self.channel.requests
        while requests:
            tag, kind, packet = requests.popleft()
            self.tasks[tag] = asyncio.ensure_future(self.handle(tag, kind, packet))

    def news(self, key: bytes) -> None:
        """A request was canceled, or a stream has other credit."""
        if key in self.tasks:
            self.tasks[key].cancel()
        if key in self.streams:
            task, event = self.streams[key]
            if self.channel.credit[key] < 0:
                task.cancel()
            else:
                event.set()

    async def handle(self, tag: bytes, kind: int, packet: bytes) -> None:
        answer: tuple[bytes, Any]
        ours = self.channel
        try:
            request = codec.decode(packet, 20 if kind == 0x53 else 8)
            answer = b"R", await self.perform(tag, kind, request, packet)
        except codec.MemoryRefused as refused:
            answer = b"U", ["memory", str(refused)]
        except SessionLost:
            answer = b"U", ["session", ""]
        except worker.Interrupted:
            raise
        except BaseException as error:
            answer = b"X", described(error)
        finally:
            del self.tasks[tag]
            ours.canceled.discard(tag)
        try:
            self.server.reply(tag, *answer)
        except channel.Closed:
            self.ended.set()

    async def perform(self, tag: bytes, kind: int, request: list[Any], packet: bytes) -> Any:
        result = self.begun(tag, kind, request)
        if hasattr(result, "__await__"):
            result = await result
        if kind == 0x53:  # S
            key, credit = packet[8:16], int.from_bytes(packet[16:20], "big")
            return await self.stream(key, credit, result)
        return result

    def begun(self, tag: bytes, kind: int, request: list[Any]) -> Any:
        """What is no coroutine runs here and now, and can be interrupted as in any other worker."""
        try:
            self.channel.begin(tag)
            if kind == 0x45:  # E
                return self.server.evaluate(*request)
            if kind == 0x49:  # I
                return self.server.init(*request)
            return self.server.call(request)
        finally:
            self.channel.end()

    async def stream(self, key: bytes, credit: int, result: Any) -> None:
        ours, sent = self.channel, 0
        ours.credit[key] = credit
        event, task = asyncio.Event(), asyncio.current_task()
        assert task is not None
        self.streams[key] = task, event
        source = result if hasattr(result, "__anext__") else _stepwise(iter(result))
        try:
            while True:
                while sent == ours.credit[key]:
                    event.clear()
                    await event.wait()
                if ours.credit[key] < 0:
                    return
                try:
                    item = await source.__anext__()
                except StopAsyncIteration:
                    return
                ours.control(b"i" + key, item)
                sent += 1
        finally:
            del ours.credit[key], self.streams[key]
            if hasattr(source, "aclose"):
                await source.aclose()


async def _stepwise(source: Any) -> Any:
    try:
        for item in source:
            yield item
            # Others first: items may come without end.
            await asyncio.sleep(0)
    finally:
        if hasattr(source, "close"):
            source.close()
