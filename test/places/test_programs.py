"""From cargo's messages on stdin: each test program, behind the directory that it is run in.

The arguments say which not, by name or as `lib:name`.
"""

import json
import os
import sys


def main():
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("executable") and message.get("profile", {}).get("test"):
            target = message["target"]
            if not {target["name"], f"{target['kind'][0]}:{target['name']}"} & set(sys.argv[1:]):
                print(os.path.dirname(message["manifest_path"]), message["executable"])


if __name__ == "__main__":
    main()
