"""Where a server listens, and how it says so."""

from __future__ import annotations

import errno
import os
import socket
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class CannotListen(Exception):
    """Nothing can be bound there; the text says why."""


def bind(server: Any, host: str, port: int, path: str | None) -> str:
    """Binds a `grpc.Server`, and returns the address in the form that gRPC clients take.

    `path` is that of a Unix socket; `@` picks an abstract one, which has no file, and `@name` is
    one of that name.
    """
    if path is None:
        number = _bind(server, f"{host}:{port}")
        return f"{host}:{number}"
    if path.startswith("@"):
        name = path[1:] or f"snakepit-{os.getpid()}-{os.urandom(8).hex()}"
        _bind(server, f"unix-abstract:{name}")
        return f"unix-abstract:{name}"
    _remove_leftover(path)
    # Nobody else's before its mode is right.
    before = os.umask(0o177)
    try:
        _bind(server, f"unix:{path}")
    finally:
        os.umask(before)
    return f"unix:{path}"


def _bind(server: Any, address: str) -> int:
    try:
        number = int(server.add_insecure_port(address))
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {address}: {error}") from None
    if number == 0:
        raise CannotListen(f"cannot listen on {address}: the address is in use, or not allowed")
    return number


def _remove_leftover(path: str) -> None:
    """Removes the socket of a server that was killed. One that is answered is somebody's."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise CannotListen(f"cannot listen on unix:{path}: a file of that name is there")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(path)
        except OSError as error:
            if error.errno != errno.ECONNREFUSED:
                reason = f"cannot tell whether it is in use: {error}"
                raise CannotListen(f"cannot listen on unix:{path}: {reason}") from None
        else:
            raise CannotListen(f"cannot listen on unix:{path}: another server listens there")
    os.unlink(path)


def announce(address: str) -> None:
    """Tells whoever has started this, by the protocol of `sd_notify(3)`; otherwise, the terminal."""
    name = os.environ.get("NOTIFY_SOCKET")
    if not name:
        print(f"listening on {address}", flush=True)
        return
    message = f"X_SNAKEPIT_ADDRESS={address}\nREADY=1\nSTATUS=listening on {address}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(message.encode(), "\0" + name[1:] if name.startswith("@") else name)
