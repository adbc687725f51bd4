"""A worker of `Snakepit.Python`, spoken to as the BEAM does."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import unittest
from typing import Any

import support
from snakepit_bridge import codec
from snakepit_bridge.channel import CONTROL, VERSION

BOOT = "from snakepit_bridge.serve import main; main()"
OPTIONS = {"path": [], "memory_from": 1 << 40, "concurrency": 1, "log_level": "info"}


class Beam:
    """The other end of both pipes."""

    def __init__(self, test: unittest.TestCase, init: str = "", **options: Any) -> None:
        env = {**os.environ, "PYTHONPATH": support.PACKAGE}
        env.pop("SNAKEPIT_LIFELINE_FD", None)
        self.process = subprocess.Popen(
            [sys.executable, "-B", "-c", BOOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # What is read ahead is not seen by those who wait for it.
            bufsize=0,
            env=env,
        )
        test.addCleanup(self.close)
        self.tag = 0
        self.request("I", [VERSION, init, {**OPTIONS, **options}])
        self.ready = self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def write(self, packet: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(len(packet).to_bytes(4, "big") + packet)
        self.process.stdin.flush()

    def request(self, kind: str, value: Any, between: bytes = b"") -> bytes:
        self.tag += 1
        tag = self.tag.to_bytes(7, "big")
        self.write(tag + kind.encode() + between + bytes(codec.encode(value)))
        return tag

    def control(self, kind: str, payload: bytes = b"") -> None:
        self.write(CONTROL + kind.encode() + payload)
        self.process.send_signal(signal.SIGURG)

    def packet(self) -> bytes:
        assert self.process.stdout is not None
        return self.read(int.from_bytes(self.read(4), "big"))

    def read(self, length: int) -> bytes:
        assert self.process.stdout is not None
        data = b""
        while len(data) < length:
            support.wait_readable(self.process.stdout.fileno(), "a packet")
            more = self.process.stdout.read(length - len(data))
            assert more, "the worker has ended"
            data += more
        return data

    def answer(self) -> tuple[bytes, Any]:
        packet = self.packet()
        assert packet[:7] == self.tag.to_bytes(7, "big"), packet
        return packet[7:8], codec.decode(packet, 8)

    def call(self, target: str, *args: Any) -> tuple[bytes, Any]:
        self.request("C", [target, list(args), {}, None])
        return self.answer()


class Requests(unittest.TestCase):
    def test_a_call_is_answered(self) -> None:
        beam = Beam(self)
        self.assertEqual(beam.ready[0], b"R")
        self.assertEqual(beam.call("abs", -1), (b"R", 1))
        kind, (name, text, trace) = beam.call("int", "x")
        self.assertEqual((kind, name), (b"X", "ValueError"))
        self.assertIn("invalid literal", text)
        self.assertIn("ValueError", trace)

    def test_another_version_is_refused(self) -> None:
        beam = Beam(self)
        beam.request("I", [VERSION + 1, "", OPTIONS])
        self.assertEqual(beam.answer()[0], b"X")

    def test_the_protocol_is_out_of_reach(self) -> None:
        beam = Beam(self, "import os, sys, subprocess")
        for code in ("print('x')", "os.write(1, b'x')", "subprocess.run(['echo', 'x']).returncode", "sys.stdin.read()"):
            beam.request("E", [code, {}, None])
            self.assertEqual(beam.answer()[0], b"R", code)

    def test_a_canceled_call_is_interrupted(self) -> None:
        beam = Beam(self, "import time, sys\ndef slow():\n    print('begun', file=sys.stderr, flush=True)\n    time.sleep(600)")
        for _ in range(20):
            tag = beam.request("C", ["slow", [], {}, None])
            assert beam.process.stderr is not None
            support.wait_readable(beam.process.stderr.fileno(), "the call")
            beam.process.stderr.readline()
            beam.control("x", tag)
            kind, (name, _text, _trace) = beam.answer()
            self.assertEqual((kind, name), (b"X", "KeyboardInterrupt"))
        self.assertEqual(beam.call("abs", -1), (b"R", 1))

    def test_a_cancel_that_is_late_hits_nobody(self) -> None:
        beam = Beam(self)
        for _ in range(200):
            tag = beam.request("C", ["sum", [list(range(1000))], {}, None])
            beam.control("x", tag)
            kind, value = beam.answer()
            self.assertTrue(value == 499500 or value[0] == "KeyboardInterrupt", value)
            self.assertEqual(beam.call("abs", -1), (b"R", 1))

    def test_a_stream_keeps_to_its_credit(self) -> None:
        beam = Beam(self)
        key = struct.pack(">Q", 7)
        beam.request("S", ["range", [100], {}, None], key + struct.pack(">I", 2))
        self.assertEqual([beam.packet() for _ in range(2)], [CONTROL + b"i" + key + bytes([n]) for n in (0, 1)])
        beam.control("n", key + struct.pack(">I", 1))
        self.assertEqual(beam.packet(), CONTROL + b"i" + key + b"\x02")
        beam.control("z", key)
        self.assertIn(beam.answer()[0], (b"R", b"X"))
        self.assertEqual(beam.call("abs", -1), (b"R", 1))

    def test_logging_is_passed_on(self) -> None:
        beam = Beam(self)
        beam.request("E", ["import logging\nlogging.getLogger('a').warning('b %d', 1)", {}, None])
        packet = beam.packet()
        self.assertEqual(packet[:8], CONTROL + b"l")
        self.assertEqual(codec.decode(packet, 8), ["warning", "a", "b 1"])
        self.assertEqual(beam.answer(), (b"R", None))

    def test_it_ends_with_its_input(self) -> None:
        beam = Beam(self)
        assert beam.process.stdin is not None
        beam.process.stdin.close()
        beam.process.stdin = None
        self.assertEqual(beam.process.wait(support.DEADLINE), 0)

    def test_it_ends_when_it_is_asked_to_in_the_middle_of_a_call(self) -> None:
        beam = Beam(self, "import time, sys\ndef slow():\n    print('begun', file=sys.stderr, flush=True)\n    time.sleep(600)")
        beam.request("C", ["slow", [], {}, None])
        assert beam.process.stderr is not None
        beam.process.stderr.readline()
        beam.process.send_signal(signal.SIGTERM)
        self.assertEqual(beam.process.wait(support.DEADLINE), 0)
