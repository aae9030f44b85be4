"""Code of ranks that run several jobs, one after another.

A rank runs this file with `runpy`, because only the trainer is importable in a rank; this file
makes the trainer importable. `runs.json` in the output directory has the jobs, keyed by name, in
order. Rank 0 prints one JSON object: the result of each job, keyed by name.
"""

import argparse
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
entry = runpy.run_path(str(ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"))
entry["make_importable"]()

import torch.distributed as dist  # noqa: E402

from zerotoolsd.trainer.rank.process_group import WorldGroup, join_group  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import rank_from, read_spec  # noqa: E402


def each_job(run: Callable[[Path, WorldGroup], Any]) -> None:
    """Call `run` with the directory of each job, one after another. Rank 0 prints the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    spec = read_spec(parser.parse_args().run_dir)
    runs = Path(spec.output_dir or "")
    group = join_group(rank_from(), spec.device)
    report = {}
    for name, job in json.loads((runs / "runs.json").read_text()).items():
        if group.rank.leads:
            (runs / name).mkdir()
            tree = {"output_dir": str(runs / name / "out"), **job}
            (runs / name / "spec.json").write_text(json.dumps(tree))
        dist.barrier()
        report[name] = run(runs / name, group)
    if group.rank.leads:
        print(json.dumps(report), flush=True)
    dist.destroy_process_group()
