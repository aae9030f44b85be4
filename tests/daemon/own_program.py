"""A training program that knows nothing of zerotools, unless it is told to: standard library only.

`own_program.py WORD...`, the words done in order:

    steps=N     N steps, each telling the helper      save=NAME   a whole torch-like checkpoint
    torn=NAME   one that is cut off                   wait=FILE   until FILE is in the directory
    touch=FILE  make FILE                             hang        until a signal
    graceful    SIGTERM saves `last`, then ends       fail=N      exit N, in the first start alone
    ask         until should_stop, then `told`        told=NAME   save NAME and tell of it
    child       a child that ignores SIGTERM          env         print the environment as JSON
    file=NAME   a safetensors file NAME               said=NAME   the same, and tell of it
    own=NAME    tell of a file of its own format      cut=NAME    cut the file off
    odd         save and tell of `ck-\\xe9t\\xe9`      hostile     tell what nobody should
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

HERE = Path.cwd()
ODD = b"ck-\xe9t\xe9"
HUGE = b"9" * 3000
HOSTILE = (
    b'{"rank": 0, "event": "checkpoint", "step": 1, "path": "/tmp/\\udce9\\ud800"}',
    b'{"rank": 0, "event": "checkpoint", "step": 2, "path": "/tmp/nul\\u0000"}',
    b'{"rank": 0, "event": "checkpoint", "step": 3, "path": "/tmp/\\udce9"}',
    b'{"rank": 0, "event": "checkpoint", "step": %b, "path": "/tmp/x"}' % HUGE,
    b'{"rank": 0, "event": "error", "time": %b, "message": "\\ud800 \\udce9 \\u0000"}' % HUGE,
    b'{"rank": 0, "event": "error", "time": NaN, "message": "\\ud800 \\udce9 \\u0000\\u001b[2J"}',
    b'{"rank": %b, "event": "step", "step": %b, "loss": NaN}' % (HUGE, HUGE),
    b'{"rank": 0, "event": "step", "step": 5, "loss": "\\udfff", "lr": 1e999, "phase": "\\ud834"}',
)


def tensors(name: str, *, whole: bool = True) -> Path:
    """A safetensors file of one tensor, in a directory of its own."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(16)
    path = HERE / "checkpoints" / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.safetensors").write_bytes(data if whole else data[:-5])
    return path


def flat(name: str) -> Path:
    """A safetensors file beside those of other steps."""
    made = tensors(f"making-{name}") / "model.safetensors"
    path = HERE / "checkpoints" / name
    made.rename(path)
    made.parent.rmdir()
    return path


def wait_for(name: str) -> None:
    while not (HERE / name).exists():
        time.sleep(0.005)


def on_term(*_: object) -> None:
    tensors("checkpoint-77")
    sys.exit(0)


def touch(name: str) -> None:
    (HERE / f"{name}.new").write_text(str(os.getpid()))
    (HERE / f"{name}.new").rename(HERE / name)


def is_first_start() -> bool:
    return Path(os.environ["ZEROTOOLS_RUN_DIR"]).name == "attempt-1"


def do(word: str) -> None:
    name, _, value = word.partition("=")
    if name == "steps":
        from zerotools import worker

        for step in range(1, int(value) + 1):
            worker.report(step, steps=int(value), loss=1.0 / step, mood="good")
    elif name == "save":
        tensors(value)
    elif name == "torn":
        tensors(value, whole=False)
    elif name == "wait":
        wait_for(value)
    elif name == "touch":
        touch(value)
    elif name == "hang":
        while True:
            time.sleep(3600)
    elif name == "graceful":
        signal.signal(signal.SIGTERM, on_term)
    elif name == "fail" and is_first_start():
        sys.exit(int(value))
    elif name == "ask":
        from zerotools import worker

        worker.should_stop()
        touch(f"asking-{os.environ.get('RANK', '0')}")
        while not worker.should_stop():
            time.sleep(0.005)
    elif name == "told":
        from zerotools import worker

        worker.checkpoint_written(tensors(value))
    elif name == "file":
        flat(value)
    elif name in ("said", "own"):
        from zerotools import worker

        path = flat(value)
        if name == "own":
            path.write_text("what only this program reads")
        worker.checkpoint_written(path)
    elif name == "cut":
        path = HERE / "checkpoints" / value
        path.write_bytes(path.read_bytes()[:-5])
    elif name == "child":
        deaf = "import signal,time; signal.signal(15, signal.SIG_IGN); print(); time.sleep(3600)"
        child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        (HERE / "child.new").write_text(str(child.pid))
        (HERE / "child.new").rename(HERE / "child")
    elif name == "odd":
        from zerotools import worker

        worker.checkpoint_written(os.fsencode(tensors(os.fsdecode(ODD))))
    elif name == "hostile":
        address = Path(os.environ["ZEROTOOLS_NOTIFY"])
        with chdir(address.parent):  # the whole path may be too long for a socket
            for message in HOSTILE:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
                    notify.connect(address.name)
                    notify.send(message)
    elif name == "env":
        print(json.dumps(dict(os.environ)), flush=True)


for each in sys.argv[1:]:
    do(each)
