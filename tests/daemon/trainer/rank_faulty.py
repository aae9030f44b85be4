"""A rank of the trainer to which something happens when a checkpoint is about to be committed.

The file `fault` in the run directory says what: `kill` at the second, or `full disk` at the first.
"""

import argparse
import errno
import os
import runpy
import signal
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
entry = runpy.run_path(str(ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"))
entry["make_importable"]()

from zerotoolsd.trainer.prepare_and_train import run_training  # noqa: E402
from zerotoolsd.trainer.rank.notify_supervisor import Notifier  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import rank_from  # noqa: E402


def main() -> None:
    """Train the job of --run-dir."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    fault = (run_dir / "fault").read_text()
    seen: list[Path] = []

    def before_commit(staging: Path) -> None:
        seen.append(staging)
        if fault == "kill" and len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "full disk" and len(seen) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(staging))

    rank = rank_from()
    notifier = Notifier(os.environ["ZEROTOOLS_NOTIFY"], rank.index)
    raise SystemExit(run_training(run_dir, rank, notifier, time.monotonic(), before_commit))


if __name__ == "__main__":
    main()
