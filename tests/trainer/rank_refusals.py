"""A rank that prepares several jobs that cannot run: run by `launching.start`.

`runs.json` in the output directory has the jobs by name. Rank 0 prints one JSON object: by name,
what each rank was told, or null where the job could be made ready.
"""

import argparse
import json
import runpy
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
entry = runpy.run_path(str(ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"))
entry["make_importable"]()

import torch.distributed as dist  # noqa: E402

from zerotools.core.errors import ZerotoolsError  # noqa: E402
from zerotoolsd.trainer.group import Group, join  # noqa: E402
from zerotoolsd.trainer.notify import Notifier  # noqa: E402
from zerotoolsd.trainer.phases import Phases  # noqa: E402
from zerotoolsd.trainer.reporting import Reporter  # noqa: E402
from zerotoolsd.trainer.session import prepare  # noqa: E402
from zerotoolsd.trainer.settings import rank_from, read_spec  # noqa: E402


def told(run_dir: Path, group: Group) -> str | None:
    """Why the job in `run_dir` cannot be made ready."""
    try:
        spec = read_spec(run_dir)
        reporter = Reporter(group.rank, Notifier(None, group.rank.number), steps=spec.train.steps)
        prepare(spec, run_dir, group, reporter, Phases(time.monotonic()))
    except ZerotoolsError as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    """Prepare each job in turn, and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    spec = read_spec(parser.parse_args().run_dir)
    runs = Path(spec.output_dir or "")
    group = join(rank_from(), spec.device)
    report = {}
    for name, job in json.loads((runs / "runs.json").read_text()).items():
        if group.rank.leads:
            (runs / name).mkdir()
            tree = {"output_dir": str(runs / name / "out"), **job}
            (runs / name / "spec.json").write_text(json.dumps(tree))
        dist.barrier()
        report[name] = group.gathered(told(runs / name, group))
    if group.rank.leads:
        print(json.dumps(report), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
