"""The codec, against itself and against the `msgpack` package where there is one."""

from __future__ import annotations

import datetime
import math
import os
import random
import unittest
from typing import Any

import support  # noqa: F401  (finds the package)
from snakepit_bridge import codec, memory
from snakepit_bridge.codec import Atom, CodecError


def round_trip(value: Any) -> Any:
    return codec.decode(bytes(codec.encode(value)))


class Values(unittest.TestCase):
    def test_what_is_encoded_is_decoded(self) -> None:
        zone = datetime.timezone(datetime.timedelta(hours=-3))
        values = [
            None, True, False, 0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 2**64,
            -1, -32, -33, -128, -129, -(2**31), -(2**63), -(2**63) - 1, 10**1000, -(10**1000),
            0.0, -1.5, math.inf, -math.inf, 1e308, 5e-324,
            "", "a" * 31, "a" * 32, "ü" * 200, "🐍" * 70000, b"", b"\xff" * 255, b"\0" * 256, b"x" * 70000,
            [], [1] * 15, [1] * 16, [1] * 70000, (), (1,), (1, (2, [3])), {}, {i: i for i in range(16)},
            {(1, "a"): None, None: 1, b"k": 2}, Atom("ok"),
            datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.time(23, 59, 59, 999999),
            datetime.datetime(2024, 2, 29, 1, 2, 3, 4), datetime.datetime(2024, 1, 1, tzinfo=zone),
        ]  # fmt: skip
        for value in values:
            with self.subTest(value=str(value)[:50]):
                result = round_trip(value)
                self.assertEqual(result, value)
                self.assertIs(type(result), type(value))
        self.assertTrue(math.isnan(round_trip(math.nan)))

    def test_the_head_comes_first(self) -> None:
        self.assertEqual(codec.encode(1, b"head"), b"head\x01")

    def test_depth_has_a_limit_both_ways(self) -> None:
        value: Any = 0
        for _ in range(codec.MAX_DEPTH):
            value = [value]
        self.assertEqual(round_trip(value), value)
        with self.assertRaisesRegex(CodecError, "nested too deeply"):
            codec.encode([value])
        with self.assertRaisesRegex(CodecError, "nested too deeply"):
            codec.decode(b"\x91" * 100_000 + b"\x01")

    def test_an_error_names_the_way(self) -> None:
        for value, way in (
            ([1, {"a": (2, object())}], "at [1]['a'][1]: a value of type builtins.object"),
            ({object(): 1}, "key <object"),
            ("\ud800", "text that is not valid Unicode"),
            ([{1, 2}], "at [0]: a value of type builtins.set"),
        ):
            with self.assertRaises(CodecError) as caught:
                codec.encode(value)
            self.assertIn(way, str(caught.exception))

    def test_bytes_that_are_no_value_are_an_error_and_nothing_else(self) -> None:
        choose = random.Random(1)
        whole = bytes(codec.encode([1, "text", {"a": (1.5, None)}, 2**70, datetime.date(2020, 1, 1)]))
        for _ in range(20_000):
            data = bytearray(whole[: choose.randrange(len(whole) + 1)])
            for _ in range(choose.randrange(4)):
                if data:
                    data[choose.randrange(len(data))] = choose.randrange(256)
            try:
                codec.decode(bytes(data))
            except (CodecError, TypeError, ValueError, OverflowError):
                pass

    def test_a_length_that_is_not_there_is_not_believed(self) -> None:
        for data in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"):
            with self.assertRaises(CodecError):
                codec.decode(data)


@unittest.skipUnless(hasattr(os, "memfd_create"), "memory files are Linux's")
class Files(unittest.TestCase):
    def setUp(self) -> None:
        codec.memory_from = 1000
        self.addCleanup(setattr, codec, "memory_from", 1 << 62)
        self.addCleanup(memory.forget)

    def test_long_bytes_are_mapped(self) -> None:
        view = round_trip(b"x" * 5000)
        self.assertIsInstance(view, memoryview)
        self.assertEqual(bytes(view), b"x" * 5000)
        self.assertTrue(view.readonly)
        self.assertEqual(len(memory._kept), 1)
        memory.release(list(memory._kept))
        self.assertEqual(view[0], ord("x"))

    def test_those_of_a_view_with_steps_too(self) -> None:
        view = memoryview(bytes(range(250)) * 40)[::2]
        self.assertEqual(bytes(round_trip(view)), view.tobytes())

    def test_what_nobody_asks_for_is_let_go(self) -> None:
        codec.encode(b"x" * 5000)
        (fd,) = memory._kept
        memory._kept[fd] -= memory.KEPT_SECONDS + 1
        memory.expire()
        self.assertEqual(memory._kept, {})
        with self.assertRaises(OSError):
            os.fstat(fd)

    def test_a_file_that_may_change_is_refused(self) -> None:
        fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, fd)
        os.truncate(fd, 100)
        with self.assertRaisesRegex(CodecError, "not sealed"):
            memory.open_file(os.getpid(), fd, 100)

    def test_a_file_that_is_gone_is_refused(self) -> None:
        with self.assertRaises(codec.MemoryRefused):
            memory.open_file(os.getpid(), 999_999, 100)
