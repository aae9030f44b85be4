"""A rank of the trainer that keeps to one processor and one memory node, and tells, when its first
checkpoint is about to be committed, where its threads run and where its memory is.

The file `binding` in the run directory says what it keeps to, `told` what it found.
"""

import argparse
import gc
import json
import os
import runpy
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
entry = runpy.run_path(str(ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"))
entry["make_importable"]()
node_of = runpy.run_path(str(ROOT / "harness" / "kernel" / "numa_pages.py"))["node_of"]

from zerotoolsd.supervisor.set_numa_binding import RankBinding, keep_to  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--run-dir", type=Path, required=True)
RUN_DIR = parser.parse_args().run_dir
FAILED = keep_to(RankBinding.from_json(json.loads((RUN_DIR / "binding").read_text()))).decode()
# As the supervisor does: before the program has any memory or threads.

import torch  # noqa: E402

from zerotoolsd.trainer.allocate_tensors import Ledger  # noqa: E402
from zerotoolsd.trainer.prepare_and_train import run_training  # noqa: E402
from zerotoolsd.trainer.rank.notify_supervisor import Notifier  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import rank_from  # noqa: E402


def nodes() -> dict[str, list[int]]:
    """By tier: the nodes on which its tensors begin."""
    found: dict[str, set[int]] = {}
    for each in gc.get_objects():
        if isinstance(each, Ledger):
            for address, tier in each._tiers.items():
                found.setdefault(tier, set()).add(node_of(address))
    return {tier: sorted(of) for tier, of in found.items()}


def policies() -> list[str]:
    """Of all mappings, as each thread would get new pages there."""
    tasks = Path("/proc/self/task")
    maps = [(tasks / name / "numa_maps").read_text() for name in os.listdir(tasks)]  # noqa: PTH208
    return sorted({line.split()[1] for text in maps for line in text.splitlines()})


def processors() -> list[list[int]]:
    """Of each thread."""
    names = os.listdir("/proc/self/task")  # noqa: PTH208
    return [sorted(os.sched_getaffinity(int(name))) for name in names]


def main() -> None:
    """Train the job of --run-dir."""
    torch.set_num_threads(3)

    def before_commit(staging: Path) -> None:
        told = {"failed": FAILED, "nodes": nodes(), "policies": policies()}
        (RUN_DIR / "told").write_text(json.dumps({**told, "processors": processors()}))

    rank = rank_from()
    notifier = Notifier(os.environ["ZEROTOOLS_NOTIFY"], rank.index)
    raise SystemExit(run_training(RUN_DIR, rank, notifier, time.monotonic(), before_commit))


if __name__ == "__main__":
    main()
