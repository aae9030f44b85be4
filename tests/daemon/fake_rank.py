"""A rank that trains nothing: it speaks the supervisor's datagrams and misbehaves on request.

`fake_rank.py --run-dir DIR`, with its behaviour in the variable FAKE: words separated by spaces,
done in order.

    steps=N        N step datagrams              exit=N         exit status N
    from=N         the steps after it are those from step N on
    nan            a step 4 whose loss is not a number
    left=N         N seconds are left, as the step of `stop` says
    release        wait for DIR/release          signal=N       end itself by a signal
    stop           wait for DIR/stop, save, 75   deaf           ignore SIGTERM from here on
    save=N         a checkpoint at step N        orphan         a detached, deaf grandchild
    flood=N        N bytes of output             child          a deaf child
    hang           never end                     error=TEXT     an error datagram
    escape         a detached, deaf grandchild with another name and no environment
    beat=PHASE     a heartbeat, in PHASE             freeze         stop itself by SIGSTOP
    finished       report that it is complete
    rank=N:WORD    WORD on rank N alone          attempt=N:WORD WORD in attempt N alone
"""

from __future__ import annotations

import _socket  # `socket`, and what it imports, takes as long as all else here
import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path

RUN_DIR = Path(os.environ["ZEROTOOLS_RUN_DIR"])
RANK = int(os.environ["RANK"])
PLAN = json.loads((RUN_DIR / "attempt.json").read_text())
phase = "init"
seconds_left: float | None = None
first_step = 1


def say(**message: object) -> None:
    fd = os.open(RUN_DIR, os.O_RDONLY)
    notify = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    notify.connect(f"/proc/self/fd/{fd}/notify.sock")
    notify.send(json.dumps({"rank": RANK, "time": time.time(), "phase": phase, **message}).encode())
    notify.close()
    os.close(fd)


def wait_for_file(name: str) -> None:
    while not (RUN_DIR / name).exists():
        time.sleep(0.005)


def save(step: int) -> None:
    if RANK:
        return
    import hashlib  # ranks that do not save need not

    output = Path(json.loads((RUN_DIR / "spec.json").read_text())["output_dir"])
    target = output / f"step-{step:08d}"
    target.mkdir(parents=True, exist_ok=True)
    (target / "data").write_bytes(b"x" * step)
    digest = hashlib.sha256(b"x" * step).hexdigest()
    manifest = {"version": 1, "files": {"data": {"size": step, "sha256": digest}}}
    (target / "MANIFEST.json").write_text(json.dumps(manifest))
    say(event="checkpoint", step=step, path=str(target), bytes=step, seconds=0.0)


def hang() -> None:
    while True:
        time.sleep(3600)


def beat(phase: str) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "daemon"))
    from zerotoolsd.supervisor.heartbeats.shared_heartbeat import DUMP_SIGNAL, open_heartbeat

    heartbeat = open_heartbeat(os.environ, RANK)
    heartbeat.enter(phase)
    heartbeat.beat(811)
    faulthandler.register(DUMP_SIGNAL)
    heartbeat.answers_dumps()


def leave_child(name: str, *, detach: bool) -> None:
    if os.fork():
        wait_for_file(name)
        return
    if detach:
        os.setsid()
        if os.fork():
            os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (RUN_DIR / f"{name}.new").write_text(str(os.getpid()))
    (RUN_DIR / f"{name}.new").rename(RUN_DIR / name)
    hang()


def escape() -> None:
    """What no mark tells from a stranger: only who its parents were."""
    if os.fork():
        wait_for_file("escape")
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    code = (
        "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); "
        "os.rename(*sys.argv[1:]); time.sleep(600)"
    )
    names = (str(RUN_DIR / "escape.new"), str(RUN_DIR / "escape"))
    os.execve(sys.executable, ("[kworker/0:1]", "-I", "-S", "-c", code, *names), {})


def do(word: str) -> None:
    global phase, seconds_left, first_step
    name, _, value = word.partition("=")
    if name in ("rank", "attempt"):
        number, _, inner = value.partition(":")
        if int(number) == (RANK if name == "rank" else PLAN["attempt"]):
            do(inner)
    elif name == "steps":
        phase = "train"
        for step in range(first_step, first_step + int(value)):
            say(event="step", step=step, steps=int(value), loss=1.0 / step, gpu_peak_bytes=step)
    elif name == "nan":
        phase = "train"
        say(event="step", step=4, steps=9, loss=float("nan"))
    elif name == "from":
        first_step = int(value)
    elif name == "finished":
        phase = "done"
        say(event="finished", step=7)
    elif name == "release":
        (RUN_DIR / f"waiting-{RANK}").touch()
        wait_for_file("release")
    elif name == "stop":
        phase = "train"
        left = {} if seconds_left is None else {"seconds_left": seconds_left}
        say(event="step", step=7, steps=100, loss=0.5, rss_bytes=1, **left)
        wait_for_file("stop")
        save(7)
        sys.exit(75)
    elif name == "left":
        seconds_left = float(value)
    elif name == "save":
        save(int(value))
    elif name == "train":
        phase = "train"
        say(step=0)
    elif name == "error":
        say(event="error", kind="crash", message=value.replace("_", " "))
    elif name == "exit":
        sys.exit(int(value))
    elif name == "signal":
        os.kill(os.getpid(), int(value))
    elif name == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif name in ("orphan", "child"):
        leave_child(name, detach=name == "orphan")
    elif name == "escape":
        escape()
    elif name == "flood":
        block = b"0123456789abcde\n" * 4096
        for _ in range(int(value) // len(block)):
            os.write(1, block)
        os.write(1, b"the end\n")
    elif name == "env":
        print(json.dumps(dict(os.environ)), flush=True)
    elif name == "beat":
        beat(value)
    elif name == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif name == "hang":
        hang()


for each in os.environ.get("FAKE", "").split():
    do(each)
