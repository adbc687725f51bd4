"""The programs in the README do what it says, as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from support import PACKAGE, Worker

with open(os.path.join(PACKAGE, "README.md"), encoding="utf-8") as readme:
    EXAMPLES = dict(re.findall(r"<!-- example: (\S+) -->\n```\w+\n(.*?)```", readme.read(), re.S))


def node_runs_modules() -> bool:
    node = shutil.which("node")
    if node is None:
        return False
    version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    return int(version.strip().lstrip("v").split(".")[0]) >= 16


class Readme(unittest.TestCase):
    def start(self, name: str, interpreter: str) -> Worker:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(EXAMPLES[name])
        worker = Worker(self, "", obey=False, command=[interpreter, path])
        for timestamp in ("1", "a:b"):
            self.assertRegex(worker.ping(timestamp), rb"^PONG:%s:\d+$" % timestamp.encode())
        return worker

    def test_five_lines(self) -> None:
        worker = self.start("five_lines.py", sys.executable)
        worker.signal(signal.SIGTERM)
        self.assertEqual(worker.output.rest(), ["bye"])
        self.assertEqual(worker.status(), 0)

    def test_plain_python(self) -> None:
        worker = self.start("plain.py", sys.executable)
        worker.beam.close()
        self.assertEqual(worker.status(), 69)

    @unittest.skipUnless(node_runs_modules(), "node 16 or later is not installed")
    def test_node(self) -> None:
        worker = self.start("worker.mjs", "node")
        worker.beam.close()
        self.assertEqual(worker.status(), 69)


if __name__ == "__main__":
    unittest.main()
