"""Starts the ranks of a run and waits for them.

No launcher takes part, so none writes to the checkpoint. Every process runs inside the directory of
its case and names files relative to it, so no path of this machine gets into a file. It is forked
from a process that has imported DeepSpeed: `harness.forked`.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness import forked
from harness.forked import Forked
from harness.patience import Deadline
from harness.ports import free_port
from tests.harness import builds

REPOSITORY = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 400
PAUSE_SECONDS = 0.02


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
        "TORCHDYNAMO_DISABLE": "1",  # Muon would compile its kernels, which takes a minute
        "PYTHONPATH": str(REPOSITORY),
        # DeepSpeed's extensions are built once for this environment, by its own ninja: others would
        # build them again, and wait for each other's lock.
        "TORCH_EXTENSIONS_DIR": str(builds.DIRECTORY),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def launch(module: str, arguments: Sequence[str], world_size: int, directory: Path) -> None:
    """Runs `python -m module` on every rank inside `directory`; a failure raises with its log."""
    port = free_port()
    logs = [directory / f"rank-{rank}.log" for rank in range(world_size)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("wb") as sink:
            ranks.append(
                forked.start(
                    forked.DEEPSPEED,
                    ["-m", module, *arguments],
                    cwd=directory,
                    env=environment(rank, world_size, port),
                    out=sink,
                )
            )
    try:
        failed = _first_failure(ranks)
    finally:
        for process in ranks:
            process.end()
    if failed is not None:
        said = logs[failed].read_text(errors="replace")[-4000:]
        raise RuntimeError(f"rank {failed} of {module} {arguments}: {said}")
    for log in logs:
        log.unlink()


def _first_failure(ranks: Sequence[Forked]) -> int | None:
    """The first rank that fails, or has not ended by the deadline; None when all are done. The
    others would wait for it for long."""
    deadline = Deadline(DEADLINE_SECONDS)
    while True:
        codes = [process.poll() for process in ranks]
        for rank, code in enumerate(codes):
            if code or (code is None and deadline.has_passed()):
                return rank
        if None not in codes:
            return None
        time.sleep(PAUSE_SECONDS)


def leave() -> None:
    """Ends a rank at once: gloo's threads abort a normal exit every now and then."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
