"""Generates the cases: `python -m tests.golden.foreign_runs.generate [--out DIR] [NAME ...]`."""

import argparse
import shutil
from pathlib import Path

from tests.golden_files import FOREIGN

from ..deepspeed_runs.generate import remove_scripts
from ..deepspeed_runs.launch import launch
from .cases import CASES


def generate(name: str, root: Path) -> Path:
    """Writes `root/<name>/{checkpoint,continued.json}` anew and returns it."""
    directory = root / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    launch("tests.golden.foreign_runs.rank", [name], CASES[name].ranks, directory)
    remove_scripts(directory)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOREIGN)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for name in options.names or CASES:
        directory = generate(name, options.out)
        size = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
        print(f"{name}: {size} bytes", flush=True)


if __name__ == "__main__":
    main()
