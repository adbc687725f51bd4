"""Answers packets, several at a time: a length of four bytes, a tag of four bytes to repeat, and milliseconds to wait."""

import struct
import sys
import threading
import time

out = threading.Lock()


def answer(tag, request):
    time.sleep(int(request) / 1000)
    reply = tag + b"waited for " + request + b" ms"
    with out:
        sys.stdout.buffer.write(struct.pack(">I", len(reply)) + reply)
        sys.stdout.buffer.flush()


while header := sys.stdin.buffer.read(4):
    packet = sys.stdin.buffer.read(struct.unpack(">I", header)[0])
    threading.Thread(target=answer, args=(packet[:4], packet[4:]), daemon=True).start()
