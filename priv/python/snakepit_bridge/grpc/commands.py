"""The service `snakepit.Commands`: functions by their names, called with values."""

from __future__ import annotations

import contextvars
import importlib
import inspect
import threading
import traceback

from . import values, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator

SERVICE = "snakepit.Commands"

_VALUE, _FAILURE = 1, 2

#: `sys.exit` in a command would end its thread, and its caller would wait for ever.
_RAISED = (Exception, SystemExit)


class Call:
    """The call that a command is answering."""

    def __init__(self, session_id: str | None, context: Any) -> None:
        #: The `session_id` that the caller has given, or `None`.
        self.session_id = session_id
        self._context = context

    @property
    def active(self) -> bool:
        """Whether somebody waits for the answer. A command that takes long can look at it."""
        return bool(self._context.is_active())

    @property
    def remaining(self) -> float | None:
        """How many seconds are left until the deadline of the call, if it has one."""
        left = self._context.time_remaining()
        return None if left is None else float(left)


_current: contextvars.ContextVar[Call] = contextvars.ContextVar("snakepit_call")


def current_call() -> Call:
    """The call that this thread is answering. Raises `LookupError` in any other thread."""
    return _current.get()


class Commands:
    """The commands of one server, of which at most `limit` run at a time."""

    def __init__(self, limit: int) -> None:
        self._grpc = importlib.import_module("grpc")
        self._functions: dict[str, Callable[..., Any]] = {}
        self._limit = limit
        self._places = threading.Semaphore(limit)

    def add(self, name: str, function: Callable[..., Any]) -> None:
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"the command {name!r} is a coroutine function; they run in threads")
        if name in self._functions:
            raise ValueError(f"there is a command {name!r} already")
        self._functions[name] = function

    def handler(self) -> Any:
        """The handler of the service, for a `grpc.Server`."""
        unary = self._grpc.unary_unary_rpc_method_handler(self._execute)
        stream = self._grpc.unary_stream_rpc_method_handler(self._execute_stream)
        methods = {"Execute": unary, "ExecuteStream": stream}
        return self._grpc.method_handlers_generic_handler(SERVICE, methods)

    def _execute(self, request: bytes, context: Any) -> bytes:
        function, arguments = self._begin(request, context)
        try:
            result = function(**arguments)
            if inspect.isgenerator(result):
                result.close()
                raise TypeError("the command answers with a stream: call it with execute_stream")
            return _value(result)
        except _RAISED as error:
            return _failure(error)
        finally:
            self._places.release()

    def _execute_stream(self, request: bytes, context: Any) -> Iterator[bytes]:
        function, arguments = self._begin(request, context)
        result = None
        try:
            result = function(**arguments)
            if not inspect.isgenerator(result):
                yield _value(result)
                return
            for item in result:
                yield _value(item)
        except _RAISED as error:
            yield _failure(error)
        finally:
            # Also when the caller has gone: then this generator is closed at its `yield`.
            if inspect.isgenerator(result):
                result.close()
            self._places.release()

    def _begin(self, request: bytes, context: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The function and its arguments; a place is taken. Does not return if there is none."""
        codes = self._grpc.StatusCode
        try:
            name, arguments, session_id = _parse(request)
        except wire.Malformed as error:
            context.abort(codes.INVALID_ARGUMENT, f"the request is malformed: {error}")
        function = self._functions.get(name)
        if function is None:
            known = ", ".join(sorted(self._functions)) or "none"
            context.abort(codes.UNIMPLEMENTED, f"no command {name!r}; there are: {known}")
        # Not to wait: whoever waits here would take a thread from those who ask for a sign of life.
        if not self._places.acquire(blocking=False):
            context.abort(codes.RESOURCE_EXHAUSTED, f"{self._limit} commands are running already")
        _current.set(Call(session_id or None, context))
        assert function is not None
        return function, arguments


def _parse(request: bytes) -> tuple[str, dict[str, Any], str]:
    name = session_id = ""
    arguments: dict[Any, Any] = {}
    for field, content in wire.fields(request):
        if field in (1, 2, 3) and not isinstance(content, bytes):
            raise wire.Malformed("a field of another type")
        if field == 1:
            name = bytes(content).decode(errors="replace")
        elif field == 2:
            arguments = values.decode_map(bytes(content))
        elif field == 3:
            session_id = bytes(content).decode(errors="replace")
    for key in arguments:
        if not isinstance(key, str):
            raise wire.Malformed(f"the name of an argument is no text: {key!r}")
    return name, arguments, session_id


def _value(result: Any) -> bytes:
    return wire.text(_VALUE, values.encode(result))


def _failure(error: BaseException) -> bytes:
    # Without this module's own frame.
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    told = (type(error).__qualname__, str(error), "".join(traceback.format_exception(
        type(error), error, error.__traceback__)))
    parts = (wire.text(i, part.encode(errors="replace")) for i, part in enumerate(told, 1))
    return wire.text(_FAILURE, b"".join(parts))
