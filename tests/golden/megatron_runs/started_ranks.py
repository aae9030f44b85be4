"""Starts the ranks of a run of Megatron, and waits for them."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from harness.ports import free_port
from harness.started import Started

REPOSITORY = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 120


def run_ranks(
    command: Sequence[str], directory: Path, *, world_size: int, megatron: Path, what: str
) -> None:
    """Run `command` in `directory` as each of so many ranks, with the megatron-core in `megatron`.

    Raises:
        RuntimeError: a rank failed; with the end of what it said of `what`.
    """
    shared = os.environ | {
        "PYTHONPATH": f"{REPOSITORY}:{megatron}",
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    logs = [directory / f"rank-{rank}.log" for rank in range(world_size)]
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
            raise RuntimeError(f"{what}: {log.read_text(errors='replace')[-4000:]}")
    for log in logs:
        log.unlink()
