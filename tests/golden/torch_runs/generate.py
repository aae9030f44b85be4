"""Generates the cases: `python -m tests.golden.torch_runs.generate [--out DIR] [NAME ...]`."""

import argparse
import shutil
from pathlib import Path

from tests.golden_files import TORCH

from ..deepspeed_runs.launch import launch
from .cases import CASES, Case


def generate(case: Case, root: Path) -> Path:
    """Writes `root/<case>/{checkpoint,truth.safetensors,truth.json}` anew and returns it."""
    directory = root / case.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    launch("tests.golden.torch_runs.rank", [case.name], case.world_size, directory)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TORCH)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for name in options.names or CASES:
        directory = generate(CASES[name], options.out)
        size = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
        print(f"{name}: {size} bytes", flush=True)


if __name__ == "__main__":
    main()
