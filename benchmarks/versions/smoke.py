"""The commands and the daemon with the lowest versions that pyproject.toml allows.

    python -m benchmarks.versions.smoke

The interpreter is that of `.venv-lowest`, which has neither pytest nor torch: what runs here is the
standard library and zerotools. A golden checkpoint is inspected, exported, resharded, converted,
verified and compared, and a daemon runs a script job. Ends with a traceback where a command ends
with another status than expected, or its result is wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import requires, version
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "deepspeed-0.19.8" / "z3-fp32-w2"

DEADLINE_SECONDS = 60.0
PROGRAM = """
import os
from pathlib import Path
from zerotools import worker
worker.report(1, steps=1, loss=0.5)
Path(os.environ["ZEROTOOLS_OUTPUT_DIR"], "said.txt").write_text("rank " + os.environ["RANK"])
"""


def main() -> None:
    """Run everything, and say which versions it was."""
    with TemporaryDirectory() as directory:
        work = Path(directory)
        checkpoints(work)
        jobs(work)
    names = sorted(
        {line.split(">")[0] for line in requires("zerotools") or [] if "extra" not in line}
    )
    print("works with", ", ".join(f"{name} {version(name)}" for name in names))


def zerotools(*words: object, status: int = 0, env: dict[str, str] | None = None) -> str:
    """What a command prints. Raises AssertionError: it ended with another status."""
    command = [sys.executable, "-m", "zerotools", *map(str, words)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        timeout=DEADLINE_SECONDS,
    )
    said = f"zerotools {' '.join(map(str, words))}: status {done.returncode}\n"
    assert done.returncode == status, said + done.stdout + done.stderr
    return done.stdout


def checkpoints(work: Path) -> None:
    """Every command on a ZeRO-3 checkpoint of two ranks, judged by what its run had in memory."""
    source, truth = GOLDEN / "checkpoint", tensors(GOLDEN / "truth.safetensors")
    shown = json.loads(zerotools("inspect", source, "--json"))
    assert "deepspeed" in json.dumps(shown), shown
    zerotools("consolidate", source, work / "model", "--dtype", "fp32", "--verify")
    exported = tensors(work / "model" / "model.safetensors")
    assert exported
    assert exported == {name: truth[f"{name}|param"] for name in exported}
    zerotools("consolidate", source, work / "half", "--dtype", "bf16")
    assert _size(work / "half") * 2 == _size(work / "model")

    zerotools("reshard", source, work / "three", "--world-size", 3)
    zerotools("convert", source, work / "dcp", "--to", "dcp")
    for name in ("three", "dcp"):
        zerotools("verify", work / name)
        zerotools("diff", source, work / name, "--role", "param")
        zerotools("consolidate", work / name, work / f"{name}-model", "--dtype", "fp32")
        assert tensors(work / f"{name}-model" / "model.safetensors") == exported
    zerotools("diff", work / "model", work / "half", "--role", "param", status=1)

    shutil.copytree(work / "three", work / "damaged")
    largest = max(work.glob("damaged/**/*.pt"), key=lambda file: file.stat().st_size)
    damaged = bytearray(largest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    largest.write_bytes(damaged)
    zerotools("verify", work / "damaged", status=1)


def jobs(work: Path) -> None:
    """A daemon that runs a script job on two ranks."""
    (work / "program.py").write_text(PROGRAM)
    (work / "job.toml").write_text(
        'engine = "script"\ndevice = "cpu"\nranks = 2\nname = "lowest"\noutput_dir = "out"\n'
        f"python = {json.dumps(sys.executable)}\n"
        '[script]\ncommand = ["program.py"]\n'
    )
    (work / "zerotoolsd.toml").write_text('[gpus]\nlocks = ""\n[limits]\ncpu_ranks = 2\n')
    state, env = work / "state", {"ZEROTOOLS_SOCKET": str(work / "api.sock")}
    command = [sys.executable, "-m", "zerotoolsd", "--state-dir", state, "--socket"]
    command += [work / "api.sock", "--config", work / "zerotoolsd.toml"]
    with (work / "log").open("wb") as log:
        daemon = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (work / "api.sock").exists():
            assert daemon.poll() is None, (work / "log").read_text()
            assert time.monotonic() < deadline, "the daemon did not listen in time"
            time.sleep(0.02)
        zerotools("submit", "--follow", work / "job.toml", env=env)
        listed = zerotools("queue", "--all", env=env)
        assert "lowest" in listed
        assert "succeeded" in listed
        assert (work / "out" / "said.txt").read_text() in ("rank 0", "rank 1")
        json.loads(zerotools("monitor", "--once", "--json", env=env))
    finally:
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(DEADLINE_SECONDS) == 0, (work / "log").read_text()


def tensors(file: Path) -> dict[str, bytes]:
    """The bytes of each tensor of a safetensors file, by name."""
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {
        name: data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]]
        for name, entry in header.items()
    }


def _size(model: Path) -> int:
    return sum(map(len, tensors(model / "model.safetensors").values()))


if __name__ == "__main__":
    main()
