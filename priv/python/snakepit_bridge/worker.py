"""`run`: a worker in one call."""

from __future__ import annotations

import os

from . import signals
from .heartbeat import HeartbeatClient

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Awaitable, Callable, Coroutine, Iterable, TypeVar, overload

    T = TypeVar("T")
else:

    def overload(function):
        return function


@overload
def run(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    on_shutdown: Iterable[Callable[[], object]] = (),
    client: HeartbeatClient | None = None,
) -> T: ...


@overload
def run(
    main: Callable[[], T],
    *,
    on_shutdown: Iterable[Callable[[], object]] = (),
    client: HeartbeatClient | None = None,
) -> T: ...


def run(
    main: Callable[[], Any],
    *,
    on_shutdown: Iterable[Callable[[], object]] = (),
    client: HeartbeatClient | None = None,
) -> Any:
    """Calls `main` with a heartbeat client beside it, and returns its result.

    A coroutine that `main` returns is run by `asyncio`. `client` is one that has not been started,
    for options other than the defaults.

    The hooks run once. When `main` ends by itself they run after it, and its result or exception
    comes back. When the BEAM is gone, or a signal asks for the end, they run at once, beside
    `main`: a hook can make it return, and wait until it has. When the last hook is done `main` is
    interrupted if it still runs (a coroutine is cancelled, a function gets `SystemExit`), so that
    its `finally` blocks run, and the interpreter exits as usual, with the client's exit status.
    All this has to fit into the client's grace period. A function in a thread other than the main
    one, or without a signal handler of the client's, cannot be interrupted: then the process ends
    after the hooks.

    With `stale_after`, the event loop of a coroutine is touched by itself: a loop that is blocked
    does not answer.
    """
    client = HeartbeatClient() if client is None else client
    for hook in on_shutdown:
        client.on_shutdown(hook)
    body = _Body(client)
    client.start()
    pid = os.getpid()
    result: Any = None
    failure: BaseException | None = None
    try:
        result = body.call(main)
    except Interrupted:
        pass
    except BaseException as error:
        failure = error
    # A child that `main` forked comes back here too; the hooks and the end are its parent's.
    status = client._finish() if os.getpid() == pid else None
    if failure is not None and not (status is not None and _is_cancellation(failure)):
        raise failure
    if status is not None:
        raise SystemExit(status)
    return result


class Interrupted(SystemExit):
    """Raised in the main thread to unwind the main function."""


class _Body:
    """The main function while it runs, and the ways to interrupt it."""

    def __init__(self, client: HeartbeatClient) -> None:
        self._client = client
        self._running = False
        self._armed = False
        self._cancel: Callable[[], None] | None = None
        client._ending.unwind = self._unwind
        client._before_signal = self._raise_if_armed

    def call(self, main: Callable[[], Any]) -> Any:
        try:
            self._running = True
            # After the line above: either this sees that the end has begun, or `_unwind`, which
            # runs later, sees a main function that runs.
            if self._client.stopping:
                raise Interrupted
            result = main()
            return self._run_coroutine(result) if hasattr(result, "__await__") else result
        finally:
            self._running = False

    def _run_coroutine(self, awaitable: Awaitable[Any]) -> Any:
        import asyncio

        async def supervised() -> Any:
            loop = asyncio.get_running_loop()
            task = asyncio.current_task()
            assert task is not None
            cancel = task.cancel
            self._cancel = lambda: _call_soon(loop, cancel)
            self._keep_touching(loop)
            return await awaitable

        return asyncio.run(supervised())

    def _keep_touching(self, loop: Any) -> None:
        stale_after = self._client._liveness.stale_after
        if stale_after is not None:
            self._client.touch()
            loop.call_later(stale_after / 4, self._keep_touching, loop)

    def _unwind(self) -> bool:
        # In the thread that ran the hooks.
        if not self._running:
            return True
        if self._cancel is not None:
            self._cancel()
            return True
        number = self._client._handlers.taken()
        if number is None:
            return False
        self._armed = True
        signals.interrupt_main_thread(number)
        return True

    def _raise_if_armed(self) -> None:
        # In the signal handler, hence in the thread that runs `call`: `_running` is exact here.
        if self._armed and self._running:
            self._armed = False
            raise Interrupted


def _call_soon(loop: Any, function: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        # The loop is closed: the main function is about to return.
        pass


def _is_cancellation(error: BaseException) -> bool:
    import asyncio

    return isinstance(error, asyncio.CancelledError)
