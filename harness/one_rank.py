"""Runs one CPU rank in this terminal, so that `breakpoint()` works:

    python -m harness.one_rank DIRECTORY [--job job.toml] [--steps 4]

The rank trains the small Llama of the tests, or the job in a file, which must have one rank. There
is no supervisor, so there are no datagrams, no log file and no restart.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from harness.launching import ENTRY, ROOT, environment, job, resolved
from harness.ports import free_port
from zerotools.jobs.jobfile.parse import job_to_dict, parse_job


def job_tree(file: Path | None, steps: int) -> dict[str, Any]:
    """Return the job in `file`; without a file, a job of `steps` steps on a document of this
    checkout.

    Raises:
        BadRequest: the file is not a job.
        SystemExit: the job has more than one rank.
    """
    if file is None:
        return dict(resolved(job(ROOT / "ARCHITECTURE.md", train={"steps": steps})))
    spec = parse_job(file.read_text("utf-8"), source=str(file), base_dir=file.absolute().parent)
    if spec.world_size != 1:
        sys.exit(f"{file}: has {spec.world_size} ranks; set ranks = 1 or gpus = 1 to debug one")
    return job_to_dict(spec)


def prepare(directory: Path, tree: dict[str, Any]) -> list[str]:
    """Write the job into the run directory `directory`, and return the command line of its rank."""
    directory.mkdir(parents=True, exist_ok=True)
    spec = {"output_dir": str(directory.absolute() / "out"), **tree}
    (directory / "spec.json").write_text(json.dumps(spec), "utf-8")
    return [sys.executable, "-P", str(ENTRY), "--run-dir", str(directory.absolute())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="run directory, for spec.json and out/")
    parser.add_argument("--job", type=Path, help="a job file with one rank")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    command = prepare(options.directory, job_tree(options.job, options.steps))
    ours = environment(0, 1, free_port(), options.directory.absolute())
    os.execve(command[0], command, {**os.environ, **ours})


if __name__ == "__main__":
    main()
