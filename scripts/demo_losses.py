"""Print the losses on both sides of a resume, from the records of two jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SHOWN = 10


def steps(job: str) -> list[dict[str, Any]]:
    """Every optimizer step of the job's last attempt."""
    shown = subprocess.run(
        ["zerotools", "show", job, "--json"], check=True, capture_output=True, text=True
    )
    run_directory = Path(json.loads(shown.stdout)["jobs"][0]["attempts"][-1]["run_dir"])
    lines = (run_directory / "progress.jsonl").read_text().splitlines()
    records = (json.loads(line) for line in lines)
    return [record for record in records if record.get("event") == "step"]


def main(first: str, second: str) -> None:
    before, after = steps(first)[-SHOWN:], steps(second)[:SHOWN]
    print(f"{'job ' + first:>20}   {'job ' + second + ', resumed':>20}")
    for old, new in zip(before, after, strict=True):
        left = f"step {old['step']:4d}  {old['loss']:.4f}"
        print(f"{left:>20}   step {new['step']:4d}  {new['loss']:.4f}")
    mean_before = sum(step["loss"] for step in before) / SHOWN
    mean_after = sum(step["loss"] for step in after) / SHOWN
    print(f"mean loss: {mean_before:.4f} before, {mean_after:.4f} after the resume")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
