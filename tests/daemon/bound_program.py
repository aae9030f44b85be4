"""A rank that tells where it may run and from where it has memory, as JSON: itself, a thread of it,
a child of it, and a program that it executes."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from zerotools.sensors.numa import memory_policy  # noqa: E402  # it is not installed


def told() -> dict[str, Any]:
    mode, nodes = memory_policy()
    return {"cpus": sorted(os.sched_getaffinity(0)), "mode": mode, "nodes": sorted(nodes)}


def policy_of_new_memory() -> str:
    """What /proc/self/numa_maps says of pages that were touched just now."""
    with mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        pages.write(b"x" * len(pages))
        held = ctypes.c_char.from_buffer(pages)
        address = ctypes.addressof(held)
        del held  # else the pages could not be given back
        policies = [
            line.split()[:2] for line in Path("/proc/self/numa_maps").read_text().splitlines()
        ]
    # The kernel may have made one area of these pages and those before them.
    before = [(int(begin, 16), policy) for begin, policy in policies if int(begin, 16) <= address]
    return max(before)[1]


def main() -> None:
    found = {"itself": told(), "new memory": policy_of_new_memory()}
    thread = threading.Thread(target=lambda: found.update(thread=told()))
    thread.start()
    thread.join()
    reading, writing = os.pipe()
    warnings.simplefilter("ignore")  # Python 3.12 counts the thread that has just ended
    if os.fork() == 0:
        os.write(writing, json.dumps(told()).encode())
        os._exit(0)
    os.wait()
    found["fork"] = json.loads(os.read(reading, 4096))
    executed = (sys.executable, "-I", "-S", __file__, "alone")
    found["program"] = json.loads(subprocess.run(executed, capture_output=True, check=True).stdout)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["alone"]:
        print(json.dumps(told()))
    else:
        main()
