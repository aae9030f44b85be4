"""Has Megatron load what zerotools makes of the models of `bridged_cases`, and compares its logits
with those of the program's own checkpoint.

    python -m tests.golden.megatron_runs.bridged_loads --megatron DIR [CASE ...]

README.md says what DIR has."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file

from tests.golden_files import GOLDEN

from .bridged_cases import CASES, Bridged
from .started_ranks import run_ranks

DIVISOR = 8  # that of `bridged_models`, which Megatron's packages are needed to import


def difference(case: Bridged, directory: Path, packages: Path) -> float:
    """The largest of any logit."""
    (golden,) = GOLDEN.glob(f"{case.program}-*/{case.name}")
    shutil.copytree(golden / "model", directory / "model")
    made = directory / "checkpoint"
    command = [*(sys.executable, "-m", "zerotools", "convert", str(golden / "model"), str(made))]
    command += ["--to", "megatron", "--map-to", "megatron", "--map-arg"]
    subprocess.run([*command, f"vocab_multiple={DIVISOR}"], check=True)
    (made / "release").rename(made / "iter_0000010")
    word = f"{case.program}/{case.name}"
    command = [sys.executable, "-m", "tests.golden.megatron_runs.bridged_rank", "logits", word]
    run_ranks(command, directory, world_size=1, megatron=packages, what=word)
    ours, theirs = (
        load_file(each / "logits.safetensors")["logits"] for each in (directory, golden)
    )
    return (ours - theirs).abs().max().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megatron", type=Path, required=True)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for name in options.names or [name for name, case in CASES.items() if case.keep]:
        with tempfile.TemporaryDirectory() as scratch:
            found = difference(CASES[name], Path(scratch), options.megatron.absolute())
        print(f"{name}: logits differ by at most {found:.1e}", flush=True)


if __name__ == "__main__":
    main()
