"""A program that says how it is, as programs do for systemd. `pip install sdnotify` has the same as a package."""

import os
import socket
import time


def notify(text):
    name = os.environ.get("NOTIFY_SOCKET")
    if name is None:
        return
    address = "\0" + name[1:] if name.startswith("@") else name
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(text.encode(), address)


notify("STATUS=warming up")
notify("READY=1\nSTATUS=listening")
# Twice as often as it has to be said.
interval = int(os.environ.get("WATCHDOG_USEC", "60000000")) / 2_000_000
while True:
    time.sleep(interval)
    notify("WATCHDOG=1")
