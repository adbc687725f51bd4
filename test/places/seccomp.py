"""What systemd's `SystemCallFilter=` lets a service call, as a profile for containers."""

import json
import shutil
import subprocess


def groups():
    """systemd's groups of system calls by name, each a set of calls and of other groups. None without systemd."""
    if not shutil.which("systemd-analyze"):
        return None
    said = subprocess.run(["systemd-analyze", "--no-pager", "syscall-filter"], capture_output=True, text=True)
    found, members = {}, set()
    for line in said.stdout.splitlines():
        word = line.strip().lstrip("# ")
        if line.startswith("@"):
            members = found.setdefault(word, set())
        elif line.startswith("    ") and not line.strip().startswith("#"):
            members.add(word)
    return found or None


def calls(known, name):
    """All calls of a group and of those in it."""
    if not name.startswith("@"):
        return {name}
    return {call for member in known[name] for call in calls(known, member)}


def write(path, known, allowed, forbidden=()):
    """All but these fail with EPERM."""
    names = calls(known, allowed)
    for group in forbidden:
        names -= calls(known, group)
    # systemd allows these whatever is forbidden.
    names |= calls(known, "@default")
    allow = {"names": sorted(names), "action": "SCMP_ACT_ALLOW", "args": []}
    profile = {
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_AARCH64"],
        "syscalls": [allow],
    }
    with open(path, "w") as file:
        json.dump(profile, file)
    return path
