"""What `fusiond.cli.preloaded judge` looks like from the daemon: the candidate's first line says what it does.

right | wrong | bad | device | sleep SECS | memory MIB | crash | silent | busy | family FILE (a grandchild, and sleep)
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def main() -> int:
    told = json.loads(sys.stdin.readline() or "{}")
    if not told:
        return 0
    folder = Path(told["folder"])
    reference, candidate, *options = told["arguments"]
    sys.stdout, sys.stderr = (folder / "out").open("w"), (folder / "err").open("w")
    word, _, rest = Path(candidate).read_text().splitlines()[0].partition(" ")
    document: dict[str, Any] = {
        **{"right": word != "wrong", "problem": None, "speedup": 1.5, "ci95": [1.4, 1.6], "evidence": "emulated"},
        **{"hints": ["coalesce"], "candidate": {"options": options, "beside": beside(candidate), "pid": os.getpid()}},
        "reference": {"text": None, "path": reference.rpartition("/reference/")[2]},
    }
    if not reference.endswith("softmax"):
        document["reference"]["text"] = Path(reference).read_text()
    match word:
        case "wrong":
            document |= {"problem": f"y[3] is 1, not 2 ({candidate})", "speedup": None, "ci95": None}
        case "bad":
            document = {"error": {"kind": "RequestError", "where": f"{candidate}:1", "problem": "is no kernel"}}
        case "device":
            document = {"error": {"kind": "DeviceError", "where": "", "problem": "no such device"}}
        case "sleep":
            time.sleep(float(rest))
        case "memory":
            document["bytes"] = len(bytearray(int(rest) << 20))
        case "crash":
            print("it fell over", file=sys.stderr)
            return 70
        case "silent":
            return 0
        case "busy":
            print("cuda:0: waiting for pid 4711 of anna since 12:03 UTC", file=sys.stderr, flush=True)
            time.sleep(60)
        case "family":
            child = subprocess.Popen(["sleep", "60"])
            Path(rest).write_text(str(child.pid))
            time.sleep(60)
    print(json.dumps(document))
    return {"bad": 2, "device": 1, "wrong": 1}.get(word, 0)


def beside(candidate: str) -> dict[str, str]:
    folder = Path(candidate).parent
    return {
        str(each.relative_to(folder)): each.read_text()
        for each in folder.rglob("*")
        if folder.name == "candidate" and each.is_file()
    }


if __name__ == "__main__":
    sys.exit(main())
