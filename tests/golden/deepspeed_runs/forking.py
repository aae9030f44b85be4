"""Ranks forked from this process, in environments of older libraries, where `launch` has no server
that forks them."""

import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from harness.ports import free_port


def fork_ranks(main: Callable[[], None], name: str, world_size: int, directory: Path) -> None:
    """Runs `main` on every rank of the case `name`, which is made anew inside `directory`; a
    failure raises with its log."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    port, pids = free_port(), []
    for rank in range(world_size):
        if not (pid := os.fork()):
            try:
                _run_rank(main, name, rank, world_size, port, directory)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    failed = [rank for rank, pid in enumerate(pids) if os.waitpid(pid, 0)[1]]
    if failed:
        said = (directory / f"rank-{failed[0]}.log").read_text(errors="replace")
        raise RuntimeError(f"rank {failed[0]} of {name}: {said[-3000:]}")
    for log in directory.glob("*.log"):
        log.unlink()


def _run_rank(
    main: Callable[[], None], name: str, rank: int, world_size: int, port: int, directory: Path
) -> None:
    log = os.open(directory / f"rank-{rank}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(directory)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "LOCAL_SIZE": str(world_size),  # or older versions of DeepSpeed ask `numactl`
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    sys.argv[1:] = [name]
    main()
