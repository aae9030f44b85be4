"""Runs a program of zerotools and counts its way through the source files.

    python trace.py --run-dir DIR      as a rank, the others with WAYS_ARGUMENTS

It needs nothing but the standard library, and takes from the environment:

    WAYS_TREE       the checkout whose `zerotools` and `daemon` are run
    WAYS_OUT        the file for the result: files in the order in which they were entered, returns
    WAYS_ARGUMENTS  the command line, as JSON; without it, the trainer's entry is run
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

TREE = Path(os.environ["WAYS_TREE"]).resolve()
OURS = (f"{TREE}/zerotools/", f"{TREE}/daemon/zerotoolsd/")
IMPORTING = "<frozen importlib._bootstrap>"
FIRST_STEP = b'"event": "step"'
"""What the datagram of a finished step says; the way of a rank ends there."""


class Way:
    """The files entered, and the calls that returned to one of them: each pair of calling and
    called function counts once."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.calls: set[tuple[str, str, str, str]] = set()
        self.returns = 0
        self.is_over = False

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Called by the interpreter at every call of a function."""
        code = frame.f_code
        file = code.co_filename
        if event != "call" or self.is_over or not file.startswith(OURS):
            return
        if code.co_name == "<module>":
            return
        caller, importing = _caller(frame)
        if importing:
            return
        place = ("", "") if caller is None else (caller.co_filename, caller.co_qualname)
        call = (*place, file, code.co_qualname)
        if place[0] == file or call in self.calls:
            return
        self.calls.add(call)
        if file in self.files:
            self.returns += 1
        self.files[file] = None

    def write(self) -> None:
        """Keep what was counted, and count no more."""
        if self.is_over:
            return
        self.is_over = True
        files = [str(Path(file).relative_to(TREE)) for file in self.files]
        told = {"files": files, "returns": self.returns}
        Path(os.environ["WAYS_OUT"]).write_text(json.dumps(told))


def _caller(frame: FrameType) -> tuple[Any, bool]:
    """The function of ours that called, by way of others or not; whether a module is imported."""
    caller = None
    back = frame.f_back
    while back is not None:
        code = back.f_code
        if code.co_filename == IMPORTING:
            return caller, True
        if caller is None and code.co_filename.startswith(OURS):
            caller = code
        back = back.f_back
    return caller, False


def main() -> None:
    way = Way()
    atexit.register(way.write)
    send = socket.socket.send

    def sent(self: socket.socket, data: Any, *flags: int) -> int:
        if FIRST_STEP in bytes(data):
            way.write()  # a rank ends without the interpreter's own exit
        return send(self, data, *flags)

    setattr(socket.socket, "send", sent)  # noqa: B010  (a method of a built-in base)
    arguments = os.environ.get("WAYS_ARGUMENTS")
    sys.path[:0] = [str(TREE), str(TREE / "daemon")]
    threading.setprofile(way.profile)
    sys.setprofile(way.profile)
    if arguments is None:
        entry = TREE / "daemon/zerotoolsd/trainer/entry.py"
        runpy.run_path(str(entry), run_name="__main__")
    else:
        sys.argv = ["zerotools", *json.loads(arguments)]
        runpy.run_module("zerotools", run_name="__main__")


if __name__ == "__main__":
    main()
