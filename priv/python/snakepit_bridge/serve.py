"""A worker of `Snakepit.Python`: takes requests off the channel and runs the user's code for them.

    python3 -c 'from snakepit_bridge.serve import main; main()'

Without `concurrency` the main thread does one request after the other, as scripts and libraries of
C code expect. With it the main thread runs an event loop: `async` functions run beside each other,
and all others one at a time.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys

from . import calls, channel, codec, logs, memory, worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator

    from .channel import Channel


class SessionLost(Exception):
    """The worker that had the object of a session is there no more."""


class Session:
    """What one session keeps: an object, names, or both."""

    def __init__(self, target: Any, names: dict[str, Any]) -> None:
        self.target = target
        self.names = names


class Server:
    """What requests mean."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.names: dict[str, Any] = {"__name__": "__snakepit__", "__builtins__": builtins}
        self.sessions: dict[Any, Session] = {}
        self.modules: dict[str, Any] = {}
        self.concurrency = 1
        self.loop: Any = None
        channel.on_drop = self.drop

    def drop(self, key: Any) -> None:
        self.sessions.pop(key, None)

    def serve(self) -> None:
        try:
            while self.concurrency == 1:
                self.handle(*self.channel.next_request())
            from .concurrent import serve

            serve(self)
        except channel.Closed:
            # The lifeline tells the same; whoever is first.
            return

    def handle(self, tag: bytes, kind: int, packet: bytes) -> None:
        """Does one request from its beginning to its answer."""
        answer: tuple[bytes, Any]
        ours = self.channel
        try:
            request = codec.decode(packet, 20 if kind == 0x53 else 8)
            ours.begin(tag)
            result = self.perform(kind, request, packet)
            answer = b"R", result
        except codec.MemoryRefused as refused:
            answer = b"U", ["memory", str(refused)]
        except SessionLost:
            answer = b"U", ["session", ""]
        # The end of the process is not the call's to catch.
        except (channel.Closed, worker.Interrupted):
            raise
        except BaseException as error:
            answer = b"X", described(error)
        while True:
            try:
                ours.end()
                self.reply(tag, *answer)
                return
            except KeyboardInterrupt as late:
                # It hit between the end of the user's code and ours.
                answer = b"X", described(late)

    def reply(self, tag: bytes, kind: bytes, value: Any) -> None:
        try:
            self.channel.answer(tag, kind, value)
        except codec.CodecError as error:
            self.channel.answer(tag, b"X", ["snakepit.CodecError", f"the result: {error}", ""])
        except (RecursionError, MemoryError) as error:
            self.channel.answer(tag, b"X", described(error))

    def perform(self, kind: int, request: list[Any], packet: bytes) -> Any:
        if kind == 0x43:  # C
            return self.settled(self.call(request))
        if kind == 0x53:  # S
            key, credit = packet[8:16], int.from_bytes(packet[16:20], "big")
            return self.stream(key, credit, self.settled(self.call(request)))
        if kind == 0x45:  # E
            return self.settled(self.evaluate(*request))
        if kind == 0x49:  # I
            return self.init(*request)
        raise ValueError(f"a request of kind {kind:#x}")

    def init(self, version: int, code: str, options: dict[str, Any]) -> list[Any]:
        if version != channel.VERSION:
            raise RuntimeError(
                f"the BEAM speaks version {version} of the protocol, snakepit_bridge version {channel.VERSION}"
            )
        codec.memory_from = options["memory_from"]
        if options["log_level"] is not None:
            send = lambda *record: self.channel.control(b"l", list(record))  # noqa: E731
            logs.install(send, options["log_level"])
        for path in reversed(options["path"]):
            if path not in sys.path:
                sys.path.insert(0, path)
        exec(compile(code, "<init>", "exec"), self.names)
        self.concurrency = options["concurrency"]
        return [os.getpid(), sys.version.split()[0], sys.executable]

    def call(self, request: list[Any]) -> Any:
        target, args, kwargs, session = request
        return self.find(target, session)(*args, **kwargs)

    def find(self, target: str, session: list[Any] | None) -> Any:
        if session is not None:
            kept = self.session(*session)
            if kept.target is not None:
                return self.attributes(kept.target, target.split("."))
            first, *rest = target.split(".")
            if first in kept.names:
                return self.attributes(kept.names[first], rest)
        return self.resolve(target)

    def session(self, key: Any, remake: bool, target: str, args: list[Any], kwargs: Any) -> Session:
        kept = self.sessions.get(key)
        if kept is None:
            if not remake:
                raise SessionLost
            made = self.settled(self.resolve(target)(*args, **kwargs)) if target else None
            kept = self.sessions[key] = Session(made, dict(self.names))
        return kept

    def resolve(self, target: str) -> Any:
        """What a dotted name means: a name of `init`, a builtin, or an attribute of a module."""
        first, *rest = target.split(".")
        names = self.names
        if first in names:
            return self.attributes(names[first], rest, target)
        if not rest and hasattr(builtins, first):
            return getattr(builtins, first)
        return self.attributes(*self.module(first, rest), target)

    def module(self, name: str, rest: list[str]) -> tuple[Any, list[str]]:
        """The longest beginning of the dotted name that is a module."""
        import importlib

        found = self.modules.get(name) or importlib.import_module(name)
        self.modules[name] = found
        while rest and not hasattr(found, rest[0]):
            deeper = f"{name}.{rest[0]}"
            try:
                found = importlib.import_module(deeper)
            except ModuleNotFoundError as error:
                if error.name != deeper:
                    raise
                break
            name, rest = deeper, rest[1:]
        return found, rest

    def attributes(self, value: Any, names: list[str], target: str = "") -> Any:
        for name in names:
            value = getattr(value, name)
        return value

    def evaluate(self, code: str, variables: dict[str, Any], session: list[Any] | None) -> Any:
        import ast

        names = self.session(*session).names if session is not None else dict(self.names)
        names.update(variables)
        tree = ast.parse(code, "<eval>")
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        exec(compile(tree, "<eval>", "exec"), names)
        return eval(compile(last, "<eval>", "eval"), names) if last is not None else None

    def settled(self, result: Any) -> Any:
        """The result of a coroutine; anything else as it is."""
        if hasattr(result, "__await__"):
            return self.run(result)
        return result

    def run(self, awaitable: Any) -> Any:
        import asyncio

        if self.loop is None:
            self.loop = asyncio.new_event_loop()

        async def awaited() -> Any:
            return await awaitable

        task = self.loop.create_task(awaited())
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            try:
                self.loop.run_until_complete(task)
            except (asyncio.CancelledError, Exception):
                pass
            raise

    def stream(self, key: bytes, credit: int, result: Any) -> None:
        """Sends item after item as far as there is credit, and closes what they come from."""
        ours = self.channel
        # How many items it may send in all; only what the BEAM says changes it.
        ours.credit[key] = credit
        ours.streaming = key
        sent = 0
        source = self.items(result)
        try:
            while True:
                if sent == ours.credit[key]:
                    ours.wait(lambda: ours.credit[key] != sent)
                if ours.credit[key] < 0:
                    return
                try:
                    item = next(source)
                except StopIteration:
                    return
                try:
                    ours.control(b"i" + key, item)
                except codec.CodecError as error:
                    raise codec.CodecError(f"an item: {error}") from None
                sent += 1
        finally:
            ours.streaming = None
            del ours.credit[key]
            close = getattr(source, "close", None)
            if close is not None:
                close()

    def items(self, result: Any) -> Iterator[Any]:
        return self.drive(result) if hasattr(result, "__anext__") else iter(result)

    def drive(self, generator: Any) -> Iterator[Any]:
        """An asynchronous generator, step by step."""
        try:
            while True:
                try:
                    yield self.run(generator.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            if hasattr(generator, "aclose"):
                self.run(generator.aclose())


def described(error: BaseException) -> list[str]:
    """The type, message and traceback of an exception, without our own part of it."""
    import traceback

    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        text = str(error)
        lines = traceback.format_exception(kind, error, trace)
    except Exception as failed:
        text, lines = f"its message cannot be shown: {type(failed).__name__}", []
    return [_valid(name), _valid(text), _valid("".join(lines))]


def _valid(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def main() -> None:
    """Serves requests until the BEAM is gone or asks for the end."""
    reader, writer = channel.take_standard_streams()
    # What is printed is seen when a line is complete, as at a terminal.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    ours = calls.channel = channel.Channel(reader, writer)
    signal.signal(signal.SIGURG, ours.ring)
    os.register_at_fork(after_in_child=lambda: _forget(ours))
    worker.run(Server(ours).serve)


def _forget(ours: Channel) -> None:
    ours.abandon()
    memory.forget()
    calls.channel = None
    signal.signal(signal.SIGURG, signal.SIG_DFL)
