"""Starts the ranks of a run and waits for them.

No launcher takes part, so none writes to the checkpoint. Every process runs inside the directory of
its case and names files relative to it, so no path of this machine gets into a file.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 400


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """The variables of torch's env:// rendezvous, and one thread per rank."""
    return os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(REPOSITORY),
    }


def launch(module: str, arguments: Sequence[str], world_size: int, directory: Path) -> None:
    """Runs `python -m module` on every rank inside `directory`; a failure raises with its log."""
    port = free_port()
    logs = [directory / f"rank-{rank}.log" for rank in range(world_size)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("wb") as sink:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *arguments],
                    cwd=directory,
                    env=environment(rank, world_size, port),
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        codes = [process.wait(DEADLINE_SECONDS) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for code, log in zip(codes, logs, strict=True):
        if code:
            raise RuntimeError(f"{log.name} of {module} {arguments}: {log.read_text()[-4000:]}")
        log.unlink()


def leave() -> None:
    """Ends a rank at once: gloo's threads abort a normal exit every now and then."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
