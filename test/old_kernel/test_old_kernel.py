"""Under script/old-kernel each call fails as on a kernel without it, and no other call does."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
WRAPPER = os.path.join(ROOT, "script", "old-kernel")
NOBODY = 65534

# Makes each call once, in a process of its own, and prints the errno of each, 0 for success.
PROBE = r"""
import ctypes, json, os, platform
library = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    ctypes.set_errno(0)
    result = library.syscall(number, *arguments)
    return ctypes.get_errno() if result < 0 else 0

# Whoever leads no group cannot signal one.
os.setpgid(0, 0)
pidfd = library.syscall(434, os.getpid(), 0)
own = pidfd if pidfd >= 0 else os.open("/dev/null", os.O_RDONLY)
name_to_handle_at = {"x86_64": 303, "aarch64": 264}[platform.machine()]
handle = ctypes.create_string_buffer((128).to_bytes(4, "little"), 136)
mount = ctypes.c_int()
print(json.dumps({
    "pidfd_open": call(434, os.getpid(), 0),
    "handles": call(name_to_handle_at, own, b"", handle, ctypes.byref(mount), 0x1000),
    "plain": call(424, own, 0, None, 0),
    "groups": call(424, own, 0, None, 4),
    "close_range": call(436, 1000, 1000, 0),
    # Without arguments it is refused by whoever knows it.
    "clone3": call(435, None, 0),
    "kill": call({"x86_64": 62, "aarch64": 129}[platform.machine()], os.getpid(), 0),
    "setpriority": call({"x86_64": 141, "aarch64": 140}[platform.machine()], 0, 0, os.getpriority(0, 0)),
    "subreaper": call({"x86_64": 157, "aarch64": 167}[platform.machine()], 36, 0, 0, 0, 0),
    "death_signal": call({"x86_64": 157, "aarch64": 167}[platform.machine()], 1, 0, 0, 0, 0),
}))
"""

MISSING = {
    "handles": errno.EOPNOTSUPP,
    "groups": errno.EINVAL,
    "close_range": errno.ENOSYS,
    "pidfd_open": errno.ENOSYS,
    "clone3": errno.ENOSYS,
    "pidfd_send_signal": errno.EPERM,
    "kill": errno.EPERM,
    "setpriority": errno.EPERM,
    "subreaper": errno.EPERM,
    "death_signal": errno.EPERM,
}


def run(*arguments, **options):
    return subprocess.run([WRAPPER, *arguments], capture_output=True, text=True, **options)


def ask(*before):
    """What each call says in a process that was started with these words before it."""
    said = subprocess.run([*before, sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    return json.loads(said.stdout)


class OldKernelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.here = ask()

    def expected(self, names):
        found = dict(self.here)
        found.update({name: MISSING[name] for name in names})
        # With flags and without: the filter that comes first answers.
        if found.pop("pidfd_send_signal", 0):
            found["plain"] = errno.EPERM
            found["groups"] = MISSING["groups"] if "groups" in names else errno.EPERM
        if "pidfd_open" in names:
            # Then there is no pidfd to try these with.
            del found["plain"], found["groups"]
        return found

    def check(self, names, *words):
        answers = ask(WRAPPER, *words)
        expected = self.expected(names)
        self.assertEqual({key: answers[key] for key in expected}, expected, names)

    def test_each_is_taken_away_and_nothing_else_is(self):
        for name in MISSING:
            self.check([name], "--without", name)

    def test_several_are_taken_away_together(self):
        self.check(["handles", "groups"], "--without", "handles,groups")
        self.check(list(MISSING), "--without=" + ",".join(MISSING))

    def test_a_name_may_have_another_answer(self):
        answers = ask(WRAPPER, "--without", "pidfd_open=eperm,close_range=eperm")
        self.assertEqual([answers[name] for name in ("pidfd_open", "close_range")], [errno.EPERM] * 2)
        said = run("--without", "setpriority=kill", sys.executable, "-c", "import os; os.setpriority(0, 0, 0)")
        self.assertEqual(said.returncode, -signal.SIGSYS)

    def test_the_default(self):
        self.check(["handles", "groups", "close_range"])

    def test_this_kernel_has_what_is_taken_away(self):
        if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 14):
            self.skipTest("an old kernel already")
        have = {name: self.here[name] for name in ("handles", "groups", "plain", "close_range", "pidfd_open")}
        self.assertEqual(set(have.values()), {0}, have)

    def test_the_commands_status_and_arguments_are_its_own(self):
        said = run("sh", "-c", 'printf "%s|" "$@"; exit 7', "sh", "a b", "", "--help")
        self.assertEqual((said.returncode, said.stdout), (7, "a b||--help|"))
        self.assertEqual(run("no-such-command-here").returncode, 127)

    def test_help_does_nothing_else(self):
        with tempfile.TemporaryDirectory() as directory:
            said = run("--help", "touch", os.path.join(directory, "x"))
            self.assertEqual((said.returncode, os.listdir(directory)), (0, []))
        self.assertIn("close_range", said.stdout)

    def test_what_makes_no_sense_runs_nothing(self):
        with tempfile.TemporaryDirectory() as directory:
            touch = ["touch", os.path.join(directory, "x")]
            for words in ([], ["--without"], ["--without", "handles"], ["--bogus", *touch], ["--without", "x", *touch],
                          ["--without", "handles=x", *touch]):
                self.assertEqual(run(*words).returncode, 2, words)
            self.assertEqual(os.listdir(directory), [])

    def test_root_keeps_its_set_user_id_programs(self):
        if os.geteuid() != 0:
            self.skipTest("not root")
        said = run("grep", "NoNewPrivs", "/proc/self/status")
        self.assertEqual(said.stdout.split()[-1], "0")

    def test_others_may_use_it_too(self):
        if os.geteuid() != 0:
            self.skipTest("not root")
        run("true")
        with tempfile.TemporaryDirectory() as directory:
            # The project may be out of reach for others.
            os.chmod(directory, 0o755)
            copy = shutil.copy(os.path.join(ROOT, "_build", "old_kernel", "old_kernel"), directory)
            line = [copy, "handles", "grep", "NoNewPrivs", "/proc/self/status"]
            said = subprocess.run(line, capture_output=True, text=True, user=NOBODY, cwd="/")
        self.assertEqual((said.returncode, said.stdout.split()[-1:]), (0, ["1"]), said.stderr)


if __name__ == "__main__":
    unittest.main()
