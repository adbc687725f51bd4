"""The wire format of Protocol Buffers, as far as `snakepit.proto` uses it.

By hand, because `grpcio` does not bring `protobuf`, and a handful of messages needs no generator.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Union

    Field = tuple[int, Union[int, bytes]]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Malformed(ValueError):
    """What was received is no message."""


def varint(number: int) -> bytes:
    """An integer that is not negative."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer(field: int, number: int) -> bytes:
    """A field with an integer that is not negative, or a boolean."""
    return varint(field << 3 | _VARINT) + varint(number)


def double(field: int, packed: bytes) -> bytes:
    """A field with eight bytes."""
    return varint(field << 3 | _FIXED64) + packed


def text(field: int, content: bytes) -> bytes:
    """A field with bytes, a text, or a message."""
    return varint(field << 3 | _BYTES) + varint(len(content)) + content


def fields(message: bytes) -> Iterator[Field]:
    """The fields of a message in their order, each with its number."""
    position, end = 0, len(message)
    while position < end:
        tag, position = _read_varint(message, position)
        kind = tag & 7
        if kind == _VARINT:
            number, position = _read_varint(message, position)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            length, position = _read_varint(message, position)
        elif kind == _FIXED64:
            length = 8
        elif kind == _FIXED32:
            length = 4
        else:
            raise Malformed(f"a field of the type {kind}")
        if position + length > end:
            raise Malformed("a field that is cut off")
        yield tag >> 3, message[position : position + length]
        position += length


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if position >= len(message) or shift > 63:
            raise Malformed("an integer that is cut off or too large")
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
