"""A row from the console of a virtual machine: console.py VERSION LOG. The status is 1 if it is not all well."""

import sys

PARTS = ["rust", "elixir", "demo", "chaos"]


def read(path):
    """The steps that were done as (name, result, seconds), which kernel it was, and whether it came to its end."""
    steps, kernel, ended = [], "-", False
    with open(path, errors="replace") as file:
        for line in file:
            words = line.partition("@@ ")[2].split()
            if words[:1] == ["kernel"]:
                kernel = words[1]
            elif words[:1] == ["status"]:
                ended = True
            elif len(words) == 3:
                steps.append((words[0], words[1], int(words[2])))
    return steps, kernel, ended


def main():
    version, path = sys.argv[1:]
    steps, kernel, ended = read(path)
    cells = []
    for part in PARTS:
        mine = [result for name, result, _ in steps if name.partition("/")[0] == part]
        cells.append(f"{part} {mine.count('ok')}/{len(mine)}" if mine else f"{part} not reached")
    failed = [name for name, result, _ in steps if result != "ok"]
    seconds = sum(seconds for _, _, seconds in steps)
    result = "FAILED" if failed else "ok" if ended else "cut off"
    print(f"{version:5} {kernel:28} {', '.join(cells):60} {result}, {seconds} s of the guest's", flush=True)
    for name in failed:
        print(f"      failed: {name}")
    return 0 if result == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
