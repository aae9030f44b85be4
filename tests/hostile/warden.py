"""Runs commands of zerotools on files that attack them, each in a process of its own, and watches.

A process that has imported zerotools reads requests from its input, one JSON object to a line, and
forks for each. The child may take `SECONDS` of processor time; every call of Python's that starts a
program, and every write that is not below the directory `to` of the request, is noted. What it says
and how much memory it took at most comes back as one line.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from harness.started import Started

SECONDS = 20
ROOM = 2**31
"""Bytes of addresses, so that a bomb is an error here and not a dead machine."""
NOBODY = 65534

IMPORTED = (
    "zerotools.cli.output.report_failure",
    "zerotools.formats.dcp.read",
    "zerotools.formats.deepspeed.reading.read",
    "zerotools.formats.safetensors.lay_out",
    "zerotools.formats.torchfile.read",
    "zerotools.ops.comparison.checkpoint_diff",
    "zerotools.ops.conversions.consolidate",
    "zerotools.ops.conversions.convert",
    "zerotools.ops.conversions.reshard",
    "zerotools.ops.quantised.bitsandbytes_weights",
    "zerotools.ops.quantised.find_fp8_fp4_int8",
    "zerotools.ops.verification.verify",
)
"""Modules that most commands need: a third of their processor time is the import."""
_RUNS = {"os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect"}
_WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Warden:
    """The process that forks; a context."""

    def __enter__(self) -> Warden:
        self._process = Started(
            [sys.executable, "-m", "tests.hostile.warden"],
            kept=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(self, arguments: list[str], to: Path, *, as_nobody: bool = False) -> Outcome:
        """Run `zerotools ARGUMENTS`, which may write below `to`."""
        request = {"arguments": arguments, "to": str(to), "as_nobody": as_nobody}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Outcome(json.loads(self._process.stdout.readline()))


class Outcome:
    """`status` is negative for a signal; `said` is of both streams; `peak` in bytes."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.status: int = answer["status"]
        self.said: str = answer["said"]
        self.peak: int = answer["peak"]
        self.deeds: list[str] = answer["deeds"]

    def __repr__(self) -> str:
        return f"status {self.status}, {self.peak >> 20} MiB, {self.deeds}: {self.said}"


def main() -> None:
    """Serve requests until the input ends."""
    from zerotools.cli.main import build

    for module in IMPORTED:
        import_module(module)
    for name in ("inspect", "verify", "diff", "consolidate", "convert", "reshard", "salvage"):
        build().get_command(None, name)  # type: ignore[arg-type]
    gc.freeze()  # else each child copies what it looks through for garbage
    for line in sys.stdin:
        print(json.dumps(_watched(json.loads(line))), flush=True)


def _watched(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as report:
        pid = os.fork()
        if not pid:
            _be_the_command(request, said, report)
        _, status = os.waitpid(pid, 0)
        said.seek(0)
        report.seek(0)
        found = json.loads(report.read() or b'{"peak": 0, "deeds": []}')
        text = said.read().decode("utf-8", "replace")
    return {"status": os.waitstatus_to_exitcode(status), "said": text, **found}


def _be_the_command(request: dict[str, Any], said: IO[bytes], report: IO[bytes]) -> None:
    """Never returns."""
    try:
        status = _run(request, said, report)
    except BaseException as error:  # pytest must not go on in the child
        os.write(2, f"the warden itself: {error!r}".encode())
        status = 99
    os._exit(status)


def _run(request: dict[str, Any], said: IO[bytes], report: IO[bytes]) -> int:
    from zerotools.cli.main import build, run

    os.dup2(said.fileno(), 1)
    os.dup2(said.fileno(), 2)
    sys.dont_write_bytecode = True
    signal.alarm(6 * SECONDS)
    used = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
    resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, used + SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    if request["as_nobody"]:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    deeds: list[str] = []
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    sys.addaudithook(lambda event, args: deeds.extend(_deed(event, args, request["to"])))
    status = run(build(), request["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(report.fileno(), json.dumps({"peak": _peak(), "deeds": deeds}).encode())
    return status


def _deed(event: str, args: tuple[Any, ...], to: str) -> Iterator[str]:
    """What should not have been done."""
    if event in _RUNS:
        yield f"{event} {args!r:.200}"
    paths: tuple[Any, ...] = ()
    if event in _WRITES:
        paths = args[:2] if event in ("os.rename", "os.link") else args[:1]
    elif event == "open":
        path, mode, flags = args
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (flags or 0) & _WRITING:
            paths = (path,)
    for path in paths:
        if not isinstance(path, int) and not _is_below(os.fsdecode(path), to):
            yield f"{event} {path!r:.200}"


def _is_below(path: str, to: str) -> bool:
    whole = Path.cwd() / path
    return ".." not in whole.parts and f"{whole}/".startswith(
        (f"{to}/", "/dev/null", "/proc/self/")
    )


def _peak() -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


if __name__ == "__main__":
    main()
