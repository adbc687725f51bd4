"""Says what went wrong in a thread that has no caller."""

from __future__ import annotations


def report(message: str) -> None:
    """Logs `message` with the current exception to the logger `snakepit_bridge`.

    Never raises, also when stderr is closed.
    """
    try:
        import logging

        logging.getLogger("snakepit_bridge").error(message, exc_info=True)
    except Exception:
        pass
