"""Generates the cases: `python -m tests.megatron_runs.generate --megatron DIR [CASE ...]`.

`--megatron` is a directory that `pip install --no-deps --target DIR megatron-core==VERSION` filled.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from harness.ports import free_port
from harness.started import Started

from ..golden_files import GOLDEN
from .cases import CASES, Case
from .hub_cases import HUB_CASES, HUB_CONFIGS

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 120


def version_in(megatron: Path) -> str:
    """Of the megatron-core that lies in the directory."""
    (found,) = megatron.glob("megatron_core-*.dist-info")
    return found.name.removeprefix("megatron_core-").removesuffix(".dist-info")


def generate(case: Case, root: Path, megatron: Path) -> Path:
    """Writes `root/<case>/{checkpoint,truth.safetensors,truth.json}` anew and returns it."""
    directory = root / case.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    shared = os.environ | {
        "PYTHONPATH": f"{REPOSITORY}:{megatron}",
        "WORLD_SIZE": str(case.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.megatron_runs.rank", case.name]
    logs = [directory / f"rank-{rank}.log" for rank in range(case.world_size)]
    ranks = [
        Started(
            command,
            cwd=directory,
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        for rank, log in enumerate(logs)
    ]
    try:
        codes = [rank.wait(DEADLINE_SECONDS) for rank in ranks]
    finally:
        for rank in ranks:  # and the processes by which Megatron writes, which outlive it
            rank.end()
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
    for code, log in zip(codes, logs, strict=True):
        if code:
            raise RuntimeError(f"{case.name}: {log.read_text(errors='replace')[-4000:]}")
    for log in logs:
        log.unlink()
    if case.name in HUB_CASES:
        (directory / "config.json").write_text(json.dumps(HUB_CONFIGS[case.name], indent=1) + "\n")
        subprocess.run(
            [sys.executable, "-m", "tests.megatron_runs.logits", str(root), case.name],
            check=True,
            env=shared,
            timeout=DEADLINE_SECONDS,
        )
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megatron", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    version = version_in(options.megatron)
    out = options.out or GOLDEN / f"megatron-core-{version}"
    names = options.names or [
        name for name, case in (CASES | HUB_CASES).items() if version in case.versions
    ]
    for name in names:
        directory = generate((CASES | HUB_CASES)[name], out.absolute(), options.megatron.absolute())
        size = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
        print(f"{name}: {size} bytes", flush=True)


if __name__ == "__main__":
    main()
