"""A rank of the trainer that is killed when its second checkpoint is written but not committed."""

import argparse
import os
import runpy
import signal
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
entry = runpy.run_path(str(ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"))
entry["make_importable"]()

from zerotoolsd.trainer.notify import Notifier  # noqa: E402
from zerotoolsd.trainer.session import run  # noqa: E402
from zerotoolsd.trainer.settings import rank_from  # noqa: E402


def main() -> None:
    """Train the job of --run-dir until then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    seen: list[Path] = []

    def before_commit(staging: Path) -> None:
        seen.append(staging)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    rank = rank_from()
    notifier = Notifier(os.environ["ZEROTOOLS_NOTIFY"], rank.number)
    run(parser.parse_args().run_dir, rank, notifier, time.monotonic(), before_commit)


if __name__ == "__main__":
    main()
