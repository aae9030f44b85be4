"""One launch of a benchmark's ranks, and what rank 0 printed last."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.launching import start

LONGEST_SECONDS = 6 * 3600.0


class Failed(RuntimeError):
    """A rank has ended with another status than 0."""


def run_ranks(run_dir: Path, tree: Mapping[str, Any], script: Path, **inputs: Any) -> Any:
    """Run `script` as the ranks of the job `tree`, with `inputs` as JSON files of these names in
    its output directory; the JSON in the last line of rank 0. `run_dir` is removed.

    Raises:
        Failed: a rank did; with its last line.
    """
    shutil.rmtree(run_dir, ignore_errors=True)
    home = run_dir / "out"
    home.mkdir(parents=True)
    for name, value in inputs.items():
        (home / f"{name}.json").write_text(json.dumps(value))
    attempt = start(run_dir, tree, script=script)
    for process in attempt.processes:
        process.wait(LONGEST_SECONDS)
    statuses = attempt.finish()
    logs = [attempt.log(rank) for rank in range(len(statuses))]
    shutil.rmtree(run_dir)
    for status, log in zip(statuses, logs, strict=True):
        if status:
            said = [line for line in log.splitlines() if line.strip()][-1:]
            raise Failed(f"status {status}: {' '.join(said)[:300]}")
    return json.loads(logs[0].splitlines()[-1])
