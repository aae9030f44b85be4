"""Generates the cases: `python -m tests.golden.deepspeed_runs.generate [--out DIR] [NAME ...]`."""

import argparse
import shutil
import sys
from pathlib import Path

from harness.started import run
from tests.golden_files import DEEPSPEED

from .case import Case
from .cases import CASES
from .launch import DEADLINE_SECONDS, environment, launch

NVME = "nvme"
"""Where cases swap to, in their directory."""
_SCRIPTS = ("zero_to_fp32.py", "zero_to_torch.py")


def remove_scripts(directory: Path) -> None:
    """Removes DeepSpeed's own scripts, which it puts beside every checkpoint."""
    for script in [file for name in _SCRIPTS for file in directory.rglob(name)]:
        script.unlink()


def convert_to_universal(directory: Path) -> None:
    """Runs DeepSpeed's converter on the only tag and leaves nothing but its result."""
    checkpoint = directory / "checkpoint"
    tag = (checkpoint / "latest").read_text()
    run(
        [
            *(sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"),
            *("--input_folder", f"checkpoint/{tag}"),
            *("--output_folder", f"checkpoint/{tag}_universal"),
            *("--num_extract_workers", "1", "--num_merge_workers", "1", "--inject_missing_state"),
        ],
        cwd=directory,
        env=environment(0, 1, 0),
        check=True,
        capture_output=True,
        timeout=DEADLINE_SECONDS,
    )
    shutil.rmtree(checkpoint / tag)
    (checkpoint / "latest").unlink()


def generate(case: Case, root: Path) -> Path:
    """Writes `root/<case>/{checkpoint,truth.safetensors,truth.json}` anew and returns it."""
    directory = root / case.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for world_size in filter(None, (case.first_world_size, case.world_size)):
        launch("tests.golden.deepspeed_runs.rank", [case.name], world_size, directory)
    shutil.rmtree(directory / NVME, ignore_errors=True)  # the checkpoint has copies
    if case.universal:
        convert_to_universal(directory)
    remove_scripts(directory)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DEEPSPEED)
    parser.add_argument("--skip-builds", action="store_true", help="no case that compiles")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for name in options.names or CASES:
        case = CASES[name]
        if options.skip_builds and case.builds:
            continue
        directory = generate(case, options.out)
        size = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
        print(f"{name}: {size} bytes", flush=True)


if __name__ == "__main__":
    main()
