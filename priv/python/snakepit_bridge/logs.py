"""`logging`, passed on to the BEAM. Nothing is loaded before the user's code loads `logging`."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Send = Callable[[str, str, str], None]


def install(send: Send, level: str) -> None:
    """Has the root logger pass on what is of this level at least, as soon as there is one."""
    if "logging" in sys.modules:
        _attach(send, level)
    else:
        sys.meta_path.insert(0, _Finder(send, level))


def _attach(send: Send, level: str) -> None:
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                send(_level(record.levelno), record.name, self.format(record))
            except Exception:
                self.handleError(record)

    root = logging.getLogger()
    root.addHandler(Handler())
    root.setLevel(level.upper())


def _level(number: int) -> str:
    for least, name in ((50, "critical"), (40, "error"), (30, "warning"), (20, "info")):
        if number >= least:
            return name
    return "debug"


class _Finder:
    """Sees that `logging` is imported, and attaches the handler behind it."""

    def __init__(self, send: Send, level: str) -> None:
        self._attach: Callable[[], None] = lambda: _attach(send, level)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "logging":
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._attach()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
