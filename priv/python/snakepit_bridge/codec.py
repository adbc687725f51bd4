"""MessagePack as it travels between the BEAM and a Python worker, by the standard library alone.

What MessagePack has no type for is an extension; `native/snakepit_core/src/msgpack.rs` is the other
side and has the table of them.
"""

from __future__ import annotations

import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

#: How deep a value may be. Both sides go into it recursively.
MAX_DEPTH = 256

_TUPLE, _ATOM = 2, 3
_UNPACK: dict[int, tuple[Callable[..., tuple[Any, ...]], int]] = {
    code: (one.unpack_from, one.size)
    for code, one in (
        (0xCA, struct.Struct(">f")),
        (0xCB, struct.Struct(">d")),
        (0xCC, struct.Struct(">B")),
        (0xCD, struct.Struct(">H")),
        (0xCE, struct.Struct(">I")),
        (0xCF, struct.Struct(">Q")),
        (0xD0, struct.Struct(">b")),
        (0xD1, struct.Struct(">h")),
        (0xD2, struct.Struct(">i")),
        (0xD3, struct.Struct(">q")),
    )
}
_DOUBLE = struct.Struct(">Bd").pack
_WORD = struct.Struct(">BI").pack
_TIME = struct.Struct(">BBBI")
_DATE = struct.Struct(">hBB")


class Atom(str):
    """An atom of Elixir: text in every way, and an atom again when it goes back."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Atom({str(self)!r})"


class CodecError(ValueError):
    """A value that cannot be carried, or bytes that are no value."""


class MemoryRefused(CodecError):
    """A memory file of the BEAM that this process may not open."""


def decode(data: bytes, pos: int = 0) -> Any:
    """The value that these bytes are, from `pos` on."""
    try:
        value, end = _value(data, pos, 0)
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise CodecError(f"malformed bytes: {error}") from None
    if end != len(data):
        raise CodecError("the bytes are cut, or there are too many")
    return value


def _value(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
    byte = data[pos]
    pos += 1
    if byte < 0x80:
        return byte, pos
    if byte < 0x90:
        return _map(data, pos, byte & 15, depth)
    if byte < 0xA0:
        return _list(data, pos, byte & 15, depth)
    if byte < 0xC0:
        end = pos + (byte & 31)
        return data[pos:end].decode(), end
    if byte >= 0xE0:
        return byte - 256, pos
    if byte == 0xC0:
        return None, pos
    if byte == 0xC2:
        return False, pos
    if byte == 0xC3:
        return True, pos
    number = _UNPACK.get(byte)
    if number is not None:
        unpack, size = number
        return unpack(data, pos)[0], pos + size
    return _sized(data, pos, byte, depth)


def _sized(data: bytes, pos: int, byte: int, depth: int) -> tuple[Any, int]:
    if byte in (0xC4, 0xC5, 0xC6):
        length, pos = _length(data, pos, 1 << (byte - 0xC4))
        return data[pos : pos + length], pos + length
    if byte in (0xD9, 0xDA, 0xDB):
        length, pos = _length(data, pos, 1 << (byte - 0xD9))
        return data[pos : pos + length].decode(), pos + length
    if byte in (0xDC, 0xDD):
        length, pos = _length(data, pos, 2 << (byte - 0xDC))
        return _list(data, pos, length, depth)
    if byte in (0xDE, 0xDF):
        length, pos = _length(data, pos, 2 << (byte - 0xDE))
        return _map(data, pos, length, depth)
    if byte in (0xC7, 0xC8, 0xC9):
        length, pos = _length(data, pos, 1 << (byte - 0xC7))
    elif 0xD4 <= byte <= 0xD8:
        length = 1 << (byte - 0xD4)
    else:
        raise CodecError(f"malformed bytes: {byte:#x}")
    code = data[pos]
    pos += 1
    if code == _TUPLE:
        elements, end = _value(data, pos, depth)
        if type(elements) is not list:
            raise CodecError("malformed bytes: a tuple that is none")
        return tuple(elements), end
    end = pos + length
    if end > len(data):
        raise CodecError("malformed bytes: they are cut")
    return extension(code, data[pos:end]), end


def _length(data: bytes, pos: int, size: int) -> tuple[int, int]:
    length = int.from_bytes(data[pos : pos + size], "big")
    pos += size
    # Each element has a byte at least.
    if length > len(data) - pos:
        raise CodecError("malformed bytes: they are cut")
    return length, pos


def _list(data: bytes, pos: int, length: int, depth: int) -> tuple[list[Any], int]:
    if depth >= MAX_DEPTH:
        raise CodecError("it is nested too deeply")
    result = []
    for _ in range(length):
        value, pos = _value(data, pos, depth + 1)
        result.append(value)
    return result, pos


def _map(data: bytes, pos: int, length: int, depth: int) -> tuple[dict[Any, Any], int]:
    if depth >= MAX_DEPTH:
        raise CodecError("it is nested too deeply")
    result = {}
    for _ in range(length):
        key, pos = _value(data, pos, depth + 1)
        result[key], pos = _value(data, pos, depth + 1)
    return result, pos


def extension(code: int, payload: bytes) -> Any:
    """The value of an extension that is no tuple."""
    if code == _ATOM:
        return Atom(payload.decode())
    if code == 1:
        magnitude = int.from_bytes(payload[1:], "little")
        return -magnitude if payload[0] else magnitude
    if code == 8:
        from . import memory

        return memory.open_file(*struct.unpack(">IIQ", payload))
    import datetime

    if code == 4:
        return datetime.date(*_DATE.unpack(payload))
    if code == 5:
        return datetime.time(*_TIME.unpack(payload))
    if code in (6, 7):
        fields = _DATE.unpack_from(payload) + _TIME.unpack_from(payload, 4)
        when = datetime.datetime(*fields)
        if code == 6:
            return when
        (offset,) = struct.unpack_from(">i", payload, 11)
        return when.replace(tzinfo=datetime.timezone(datetime.timedelta(seconds=offset)))
    raise CodecError(f"malformed bytes: extension {code}")


def encode(value: Any, head: bytes = b"") -> bytearray:
    """The bytes of a value, behind `head`; `CodecError` names the way to what cannot be carried."""
    out = bytearray(head)
    try:
        _put(value, out, 0)
    except CodecError as error:
        if isinstance(error.__cause__, OSError):
            raise
        way, what = _culprit(value, error)
        raise CodecError(f"at {way.strip()}: {what}" if way else what) from None
    return out


def _put(value: Any, out: bytearray, depth: int) -> None:
    put = _PUT.get(type(value))
    if put is not None:
        put(value, out, depth)
    else:
        _put_other(value, out, depth)


def _put_none(_value: None, out: bytearray, _depth: int) -> None:
    out.append(0xC0)


def _put_bool(value: bool, out: bytearray, _depth: int) -> None:
    out.append(0xC3 if value else 0xC2)


def _put_int(value: int, out: bytearray, _depth: int) -> None:
    if 0 <= value < 0x80:
        out.append(value)
    elif -32 <= value < 0:
        out.append(value + 256)
    elif 0 <= value < 1 << 32:
        if value < 0x100:
            out += bytes((0xCC, value))
        else:
            out += _WORD(0xCE, value)
    elif -(1 << 63) <= value < 1 << 63:
        out.append(0xD3)
        out += value.to_bytes(8, "big", signed=True)
    elif 0 <= value < 1 << 64:
        out.append(0xCF)
        out += value.to_bytes(8, "big")
    else:
        magnitude = abs(value)
        payload = magnitude.to_bytes((magnitude.bit_length() + 7) // 8, "little")
        _put_extension(1, bytes((value < 0,)) + payload, out)


def _put_float(value: float, out: bytearray, _depth: int) -> None:
    out += _DOUBLE(0xCB, value)


def _put_str(value: str, out: bytearray, _depth: int) -> None:
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise CodecError(f"text that is not valid Unicode cannot be carried: {error.reason}") from None
    length = len(data)
    if length < 32:
        out.append(0xA0 | length)
    elif length < 0x100:
        out += bytes((0xD9, length))
    else:
        out += _word(0xDB, length)
    out += data


def _word(code: int, length: int) -> bytes:
    if length >= 1 << 32:
        raise CodecError("4 GiB and more cannot be carried")
    return _WORD(code, length)


def _put_bytes(value: bytes | bytearray | memoryview, out: bytearray, _depth: int) -> None:
    length = value.nbytes if isinstance(value, memoryview) else len(value)
    if length >= memory_from:
        from . import memory

        placed = memory.create(value)
        if placed is not None:
            _put_extension(8, struct.pack(">IIQ", os.getpid(), placed, length), out)
            return
    if length < 0x100:
        out += bytes((0xC4, length))
    else:
        out += _word(0xC6, length)
    # Also of a view with steps in it.
    out += value.tobytes() if isinstance(value, memoryview) else value


def _put_list(value: list[Any] | tuple[Any, ...], out: bytearray, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise CodecError("it is nested too deeply")
    length = len(value)
    if length < 16:
        out.append(0x90 | length)
    else:
        out += _word(0xDD, length)
    for one in value:
        _put(one, out, depth + 1)


def _put_tuple(value: tuple[Any, ...], out: bytearray, depth: int) -> None:
    out += b"\xc9\0\0\0\0\x02"
    begin = len(out)
    _put_list(value, out, depth)
    out[begin - 5 : begin - 1] = _word(0, len(out) - begin)[1:]


def _put_dict(value: dict[Any, Any], out: bytearray, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise CodecError("it is nested too deeply")
    length = len(value)
    if length < 16:
        out.append(0x80 | length)
    else:
        out += _word(0xDF, length)
    for key, one in value.items():
        _put(key, out, depth + 1)
        _put(one, out, depth + 1)


def _put_atom(value: Atom, out: bytearray, _depth: int) -> None:
    _put_extension(_ATOM, value.encode(), out)


def _put_extension(code: int, payload: bytes, out: bytearray) -> None:
    out += _word(0xC9, len(payload))
    out.append(code)
    out += payload


_PUT: dict[type, Callable[[Any, bytearray, int], None]] = {
    type(None): _put_none,
    bool: _put_bool,
    int: _put_int,
    float: _put_float,
    str: _put_str,
    bytes: _put_bytes,
    bytearray: _put_bytes,
    memoryview: _put_bytes,
    list: _put_list,
    tuple: _put_tuple,
    dict: _put_dict,
    Atom: _put_atom,
}


def _put_other(value: Any, out: bytearray, depth: int) -> None:
    # What is a kind of something that can be carried, as NumPy's numbers and named tuples are.
    for kind in (Atom, str, int, float, dict, list, tuple, bytes, bytearray):
        if isinstance(value, kind):
            return _PUT[kind](value, out, depth)
    datetime = sys.modules.get("datetime")
    if datetime is not None:
        payload = _dated(value, datetime)
        if payload is not None:
            return _put_extension(*payload, out)
    kind = type(value)
    # NumPy's scalars and arrays, and what is like them.
    if hasattr(kind, "tolist"):
        return _put(value.tolist(), out, depth)
    if hasattr(kind, "__index__"):
        return _put_int(value.__index__(), out, depth)
    if hasattr(kind, "__float__"):
        return _put_float(float(value), out, depth)
    raise CodecError(f"a value of type {kind.__module__}.{kind.__qualname__} cannot be carried")


def _dated(value: Any, datetime: Any) -> tuple[int, bytes] | None:
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.timezone.utc)
        code = 6 if value.tzinfo is None else 7
        day = _DATE.pack(value.year, value.month, value.day)
        return code, day + _clock(value) + (b"" if code == 6 else b"\0\0\0\0")
    if isinstance(value, datetime.date):
        return 4, _DATE.pack(value.year, value.month, value.day)
    if isinstance(value, datetime.time) and value.tzinfo is None:
        return 5, _clock(value)
    return None


def _clock(value: Any) -> bytes:
    return _TIME.pack(value.hour, value.minute, value.second, value.microsecond)


def _culprit(value: Any, error: CodecError) -> tuple[str, str]:
    """The way to what is at fault, and what it is: looked for when it is known that there is one."""
    way, what, depth = "", str(error), 0
    while depth <= MAX_DEPTH and isinstance(value, (dict, list, tuple)):
        depth += 1
        for step, one in _parts(value):
            try:
                _put(one, bytearray(), depth)
            except CodecError as inner:
                way, what, value = way + step, str(inner), one
                break
        else:
            break
    # The way to the bottom of something deep helps nobody.
    return ("" if depth > MAX_DEPTH else way), what


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        for key, one in value.items():
            yield f" key {key!r}", key
            yield f"[{key!r}]", one
    else:
        for index, one in enumerate(value):
            yield f"[{index}]", one


#: Bytes of this length and more go into a memory file.
memory_from = 1 << 62
