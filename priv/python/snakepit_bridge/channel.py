"""What a Python worker and the BEAM say to each other, and who reads it.

The protocol, version 1
-----------------------
Packets over two pipes, each with its length in four bytes before it. A packet begins with a tag of
seven bytes and a byte that says what it is. Values are MessagePack, see `codec`; ids are eight
bytes. `lib/snakepit/python/protocol.ex` is the other side.

A request has a tag of its own, which its one answer repeats:

    I  init        [version, code, options]
    C  call        [target, args, kwargs, session]
    E  eval        [code, variables, session]
    S  stream      id, credit (4 bytes), then as a call
    R  result      value                       the answer
    X  exception   [type, message, traceback]  the answer
    U  unable      reason                      the answer: nothing was called

Everything else has the tag `CONTROL` and no answer. To Python:

    x  cancel      tag                nobody waits for that answer any more
    n  credit      id, count          so many items more
    z  close       id                 nobody wants more items; it is interrupted
    r  returned    id, value          of a callback
    f  failed      id, text           of a callback
    d  drop        key                a session whose owner is gone
    m  mapped      fds                memory files that are not needed any more

From Python:

    i  item        id, value          of a stream
    c  callback    id, [name, args]
    s  send        [name, args]       a callback that nobody waits for
    l  log         [level, logger, text]

Who reads
---------
There is no thread for it: to hand each request to the main thread would take longer than the rest
of it. Whoever waits for something reads, one at a time, and puts what is for others where they find
it. While the main thread runs the user's code nobody may be reading, so the BEAM rings with SIGURG
when it cancels a request; the handler reads what has come, and raises KeyboardInterrupt if it is
that request which runs. Nothing else uses that signal by default, and processes ignore it.

An interrupt must not hit while a packet is being written. So the main thread counts in `_shield`
how deep it is in this module, and is interrupted when it has left it.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections import deque

from . import codec, memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

VERSION = 1
CONTROL = b"\xff" * 7
#: The longest packet: the BEAM ends a worker that writes a longer one.
MAX_PACKET = 0x7FFFFFFF
_READ = 65536


class Closed(Exception):
    """The BEAM has closed its end."""


class Channel:
    """This process's end of both pipes. `start` takes them from the standard streams."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader = reader
        self._writer = writer
        self._buffer = bytearray()
        self._writing = threading.Lock()
        self._state = threading.Condition(threading.Lock())
        self._leader = False
        self.closed = False
        self._pid = os.getpid()
        self._main = threading.get_ident()
        self._shield = 0
        self._interrupt = False
        self._rung = False
        #: Requests that nobody has begun: tag, kind and payload.
        self.requests: deque[tuple[bytes, int, bytes]] = deque()
        self.canceled: set[bytes] = set()
        #: The tag of the request that the main thread runs the user's code for.
        self.running: bytes | None = None
        #: The stream that the main thread makes items of.
        self.streaming: bytes | None = None
        #: Of the streams that are open: how many items they may send; negative when closed.
        self.credit: dict[bytes, int] = {}
        self.returned: dict[bytes, Callable[[], Any] | None] = {}
        self.on_drop: Callable[[Any], None] = lambda _key: None
        #: Told of each cancel and credit, and of requests and the end, in whatever thread has read them: for those
        #: who do not wait in here.
        self.on_news: Callable[[bytes], None] = lambda _tag: None
        self.on_request: Callable[[], None] = lambda: None

    # Writing

    def answer(self, tag: bytes, kind: bytes, value: Any) -> None:
        self._send(tag + kind, value)

    def control(self, kind: bytes, value: Any) -> None:
        self._send(CONTROL + kind, value)

    def _send(self, head: bytes, value: Any) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("this process was forked from a worker, which alone talks to the BEAM")
        self._enter()
        try:
            packet = codec.encode(value, b"\0\0\0\0" + head)
            length = len(packet) - 4
            if length > MAX_PACKET:
                raise codec.CodecError(f"a packet of {length} bytes is too long")
            packet[:4] = length.to_bytes(4, "big")
            with self._writing:
                written = os.write(self._writer, packet)
                while written < len(packet):
                    written += os.write(self._writer, memoryview(packet)[written:])
        except BrokenPipeError:
            raise Closed from None
        finally:
            self._leave()

    # Interrupting

    def _enter(self) -> None:
        if threading.get_ident() == self._main:
            self._shield += 1

    def _leave(self) -> None:
        if threading.get_ident() == self._main:
            self._shield -= 1
            if self._rung and self._shield == 0:
                self._listen()
            self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._interrupt and self._shield == 0 and self.running is not None:
            self._interrupt = False
            raise KeyboardInterrupt("the call has taken too long, or its caller is gone")

    def begin(self, tag: bytes) -> None:
        """The user's code is about to run for this request."""
        self._interrupt = False
        self.running = tag
        if tag in self.canceled:
            raise KeyboardInterrupt("the call was canceled before it began")

    def end(self) -> None:
        """The user's code has returned."""
        tag, self.running = self.running, None
        self._interrupt = False
        if tag is not None:
            self.canceled.discard(tag)

    def ring(self, _number: int, _frame: Any) -> None:
        """The handler of SIGURG, in the main thread."""
        if os.getpid() != self._pid:
            return
        # In the middle of something of ours, which listens when it is done.
        self._rung = True
        if self._shield == 0:
            self._listen()
            self._raise_if_due()

    def _listen(self) -> None:
        """Reads what the BEAM has rung for, unless another thread does, which rings in its turn."""
        self._shield += 1
        try:
            self._rung = False
            self.poll()
        finally:
            self._shield -= 1

    # Reading

    def wait(self, ready: Callable[[], object]) -> None:
        """Returns when `ready` does; raises `Closed` when nothing will come any more."""
        self._enter()
        try:
            while not ready():
                if self.closed:
                    raise Closed
                if self._interrupt and self._shield == 1 and self._is_main():
                    return
                with self._state:
                    if ready():
                        return
                    if self._leader:
                        self._state.wait()
                        continue
                    self._leader = True
                try:
                    self._read(True)
                finally:
                    self._resign()
        finally:
            self._leave()

    def _is_main(self) -> bool:
        return threading.get_ident() == self._main

    def _resign(self) -> None:
        with self._state:
            self._leader = False
            self._state.notify_all()

    def poll(self) -> None:
        """Reads what there is, without waiting."""
        with self._state:
            if self._leader:
                return
            self._leader = True
        try:
            self._read(False)
        finally:
            self._resign()

    def next_request(self) -> tuple[bytes, int, bytes]:
        requests = self.requests
        if not requests:
            self.wait(requests.__len__)
        return requests.popleft()

    def _read(self, waits: bool) -> None:
        while waits or select.select([self.reader], [], [], 0)[0]:
            data = os.read(self.reader, _READ)
            if not data:
                self.closed = True
                self.on_request()
                return
            if not self._buffer and int.from_bytes(data[:4], "big") == len(data) - 4:
                # One packet, and all of it: nearly always.
                self._dispatch(data[4:])
                if waits:
                    return
                continue
            self._buffer += data
            if self._cut() and waits:
                return

    def _cut(self) -> bool:
        """Takes the packets out of the buffer; whether there was one."""
        buffer, start = self._buffer, 0
        while len(buffer) - start >= 4:
            end = start + 4 + int.from_bytes(buffer[start : start + 4], "big")
            if end > len(buffer):
                break
            self._dispatch(bytes(buffer[start + 4 : end]))
            start = end
        del buffer[:start]
        return start > 0

    def _dispatch(self, packet: bytes) -> None:
        tag, kind = packet[:7], packet[7]
        if tag != CONTROL:
            self.requests.append((tag, kind, packet))
            self.on_request()
        elif kind == 0x78:  # x
            self._cancel(packet[8:])
        elif kind == 0x6E:  # n
            key = packet[8:16]
            if self.credit.get(key, -1) >= 0:
                self.credit[key] += int.from_bytes(packet[16:20], "big")
                self.on_news(key)
        elif kind == 0x7A:  # z
            key = packet[8:16]
            if key in self.credit:
                self.credit[key] = -1
                if key == self.streaming:
                    self._cancel(self.running)
                self.on_news(key)
        elif kind in (0x72, 0x66):  # r, f
            key = packet[8:16]
            if key in self.returned:
                self.returned[key] = _outcome(kind, packet)
        elif kind == 0x64:  # d
            self.on_drop(codec.decode(packet, 8))
        elif kind == 0x6D:  # m
            memory.release(codec.decode(packet, 8))
        memory.expire()

    def _cancel(self, tag: bytes | None) -> None:
        if tag is None:
            return
        if tag == self.running:
            self._interrupt = True
            if not self._is_main():
                signal.pthread_kill(self._main, signal.SIGURG)
        elif any(tag == request[0] for request in self.requests):
            self.canceled.add(tag)
        self.on_news(tag)

    # Callbacks

    def call(self, name: str, args: tuple[Any, ...]) -> Any:
        key = os.urandom(8)
        self.returned[key] = None
        try:
            self._send(CONTROL + b"c", [key, name, list(args)])
            self.wait(lambda: self.returned[key] is not None)
            outcome = self.returned[key]
        finally:
            del self.returned[key]
        assert outcome is not None
        return outcome()

    def abandon(self) -> None:
        """In a child that was forked: all of this is its parent's."""
        for fd in (self.reader, self._writer):
            try:
                os.close(fd)
            except OSError:
                pass


class ElixirError(RuntimeError):
    """A function of the application, called from Python, has failed or may not be called."""


def _outcome(kind: int, packet: bytes) -> Callable[[], Any]:
    def outcome() -> Any:
        value = codec.decode(packet, 16)
        if kind == 0x66:
            raise ElixirError(value)
        return value

    return outcome


def take_standard_streams() -> tuple[int, int]:
    """The pipes of the protocol, out of reach of whoever reads from 0 or writes to 1.

    What is printed goes where errors go, and there is nothing to read.
    """
    import fcntl

    reader = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 10)
    writer = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 10)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null != 0:
        os.close(null)
    os.dup2(2, 1)
    return reader, writer
