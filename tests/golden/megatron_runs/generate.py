"""Generates the cases: `python -m tests.golden.megatron_runs.generate --megatron DIR [CASE ...]`.

`--megatron` is a directory that `pip install --no-deps --target DIR megatron-core==VERSION` filled.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from tests.golden_files import GOLDEN

from .cases import CASES, Case
from .hub_cases import HUB_CASES, HUB_CONFIGS
from .started_ranks import run_ranks


def version_in(megatron: Path) -> str:
    """Of the megatron-core that lies in the directory."""
    (found,) = megatron.glob("megatron_core-*.dist-info")
    return found.name.removeprefix("megatron_core-").removesuffix(".dist-info")


def generate(case: Case, root: Path, megatron: Path) -> Path:
    """Writes `root/<case>/{checkpoint,truth.safetensors,truth.json}` anew and returns it."""
    directory = root / case.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    run_ranks(
        [sys.executable, "-m", "tests.golden.megatron_runs.rank", case.name],
        directory,
        world_size=case.world_size,
        megatron=megatron,
        what=case.name,
    )
    if case.name in HUB_CASES:
        (directory / "config.json").write_text(json.dumps(HUB_CONFIGS[case.name], indent=1) + "\n")
        run_ranks(
            [sys.executable, "-m", "tests.golden.megatron_runs.logits", str(root), case.name],
            directory,
            world_size=1,
            megatron=megatron,
            what=f"{case.name}, its logits",
        )
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megatron", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    version = version_in(options.megatron)
    out = options.out or GOLDEN / f"megatron-core-{version}"
    names = options.names or [
        name for name, case in (CASES | HUB_CASES).items() if version in case.versions
    ]
    for name in names:
        directory = generate((CASES | HUB_CASES)[name], out.absolute(), options.megatron.absolute())
        size = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
        print(f"{name}: {size} bytes", flush=True)


if __name__ == "__main__":
    main()
