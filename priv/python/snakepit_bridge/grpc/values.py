"""Values of Python as the message `snakepit.Value`, and back."""

from __future__ import annotations

import struct

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NULL, _BOOLEAN, _INTEGER, _FLOAT, _TEXT, _BINARY, _LIST, _MAP = range(1, 9)

#: How many lists and maps may be in each other.
DEPTH = 64


def encode(value: Any, path: str = "the result", depth: int = 0) -> bytes:
    """The message. Raises `TypeError` or `ValueError`, which name the part that cannot be carried."""
    # What occurs most is asked first; `bool` is an `int`.
    if isinstance(value, str):
        try:
            return wire.text(_TEXT, value.encode())
        except UnicodeEncodeError:
            raise ValueError(f"{path} is a text with a lone surrogate") from None
    if value is None:
        return wire.integer(_NULL, 1)
    if isinstance(value, bool):
        return wire.integer(_BOOLEAN, int(value))
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{path} is an integer of more than 64 bits")
        return wire.integer(_INTEGER, (value << 1 ^ value >> 63) & 0xFFFFFFFFFFFFFFFF)
    if isinstance(value, float):
        return wire.double(_FLOAT, struct.pack("<d", value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return wire.text(_BINARY, bytes(value))
    if isinstance(value, (list, tuple, dict)):
        if depth >= DEPTH:
            raise ValueError(f"{path} is nested deeper than {DEPTH} lists and maps")
        if isinstance(value, dict):
            return wire.text(_MAP, encode_map(value, path, depth))
        items = (encode(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value))
        return wire.text(_LIST, b"".join(wire.text(1, item) for item in items))
    raise TypeError(f"{path} is of the type {type(value).__name__}, which cannot be carried")


def encode_map(value: dict[Any, Any], path: str, depth: int = 0) -> bytes:
    """The message `snakepit.Map`."""
    entries = []
    for key, item in value.items():
        name = encode(key, f"a key of {path}", depth + 1)
        content = encode(item, f"{path}[{key!r}]", depth + 1)
        entries.append(wire.text(1, wire.text(1, name) + wire.text(2, content)))
    return b"".join(entries)


def decode(message: bytes, depth: int = 0) -> Any:
    """The value of a message. Of several fields the last one counts."""
    value: Any = None
    for field, content in wire.fields(message):
        if field == _BOOLEAN:
            value = bool(content)
        elif field == _INTEGER:
            number = _number(content)
            value = number >> 1 ^ -(number & 1)
        elif field == _FLOAT:
            value = struct.unpack("<d", _bytes(content, 8))[0]
        elif field == _TEXT:
            value = _text(content)
        elif field == _BINARY:
            value = _bytes(content)
        elif field in (_LIST, _MAP):
            if depth >= DEPTH:
                raise wire.Malformed(f"values nested deeper than {DEPTH} lists and maps")
            inner = _bytes(content)
            value = decode_map(inner, depth) if field == _MAP else _decode_list(inner, depth)
        elif field == _NULL:
            value = None
    return value


def decode_map(message: bytes, depth: int = 0) -> dict[Any, Any]:
    """The dictionary of a message `snakepit.Map`."""
    found = {}
    for field, entry in wire.fields(message):
        if field != 1:
            continue
        key = value = None
        for part, content in wire.fields(_bytes(entry)):
            if part == 1:
                key = decode(_bytes(content), depth + 1)
            elif part == 2:
                value = decode(_bytes(content), depth + 1)
        try:
            found[key] = value
        except TypeError:
            raise wire.Malformed("a list or map as the key of a map") from None
    return found


def _decode_list(message: bytes, depth: int) -> list[Any]:
    return [
        decode(_bytes(content), depth + 1) for field, content in wire.fields(message) if field == 1
    ]


def _number(content: int | bytes) -> int:
    if not isinstance(content, int):
        raise wire.Malformed("a field of another type")
    return content


def _bytes(content: int | bytes, length: int | None = None) -> bytes:
    if not isinstance(content, bytes) or length not in (None, len(content)):
        raise wire.Malformed("a field of another type")
    return content


def _text(content: int | bytes) -> str:
    try:
        return _bytes(content).decode()
    except UnicodeDecodeError:
        raise wire.Malformed("a text that is not in UTF-8") from None
