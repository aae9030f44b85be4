"""Makes the cases of `bridged_cases`: `python -m tests.golden.megatron_runs.bridged --megatron DIR
[--out DIR] [CASE ...]`. README.md says what DIR has."""

import argparse
import shutil
import sys
from pathlib import Path

from tests.golden_files import GOLDEN

from .bridged_cases import CASES, Bridged
from .started_ranks import run_ranks


def version_of(program: str, packages: Path) -> str:
    """Of the program that lies in the directory."""
    prefix = program.replace("-", "_")
    (found,) = packages.glob(f"{prefix}-*.dist-info")
    return found.name.removeprefix(f"{prefix}-").removesuffix(".dist-info")


def generate(case: Bridged, out: Path, packages: Path) -> Path:
    """Writes `model`, `checkpoint`, `truth.json` and `logits.safetensors` of the case anew."""
    directory = out / f"{case.program}-{version_of(case.program, packages)}" / case.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for action, ranks in (("hub", 1), ("save", case.world_size), ("logits", 1)):
        word = f"{case.program}/{case.name}"
        command = [sys.executable, "-m", "tests.golden.megatron_runs.bridged_rank", action, word]
        run_ranks(command, directory, world_size=ranks, megatron=packages, what=f"{word}, {action}")
    (directory / "model" / "generation_config.json").unlink(missing_ok=True)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megatron", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=GOLDEN)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for name in options.names or [name for name, case in CASES.items() if case.keep]:
        directory = generate(CASES[name], options.out.absolute(), options.megatron.absolute())
        size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        print(f"{name}: {size} bytes", flush=True)


if __name__ == "__main__":
    main()
