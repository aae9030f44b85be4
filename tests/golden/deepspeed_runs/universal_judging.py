"""Universal checkpoints of golden cases, handed to real DeepSpeed; what it holds is compared.

Needs no torch itself: the ranks that `universal.py` describes run as processes of their own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.formats.copying import write
from tests.golden_files import DEEPSPEED, digests
from zerotools import __version__
from zerotools.formats import read, training_of
from zerotools.formats.deepspeed.universal.lay_out import lay_out_universal, max_ranks
from zerotools.formats.deepspeed.universal.loadable_contents import MOMENTS, contents_of

from .launch import launch

# Engines that are Hugging Face's or parallel models; and those without ZeRO, which name no state.
OTHER_ENGINES = (
    "pipeline", "tensor-parallel", "experts", "autoep", "z0-", "hf-trainer", "accelerate",
)  # fmt: skip
# DeepSpeed 0.19.8 does not load Muon's state from universal checkpoints: `universal/lay_out.py`.
NOT_LOADED = "muon"
LAUNCHED_TOGETHER = 20


@dataclass(frozen=True)
class Run:
    """A golden case, loaded by an engine of another stage."""

    case: str
    stage: int

    def __str__(self) -> str:
        return f"{self.case}@{self.stage}"


def judged_cases() -> list[str]:
    """Golden cases that a universal checkpoint can be made of, and an engine for."""
    names = (path.parent.name for path in DEEPSPEED.glob("*/truth.json"))
    return sorted(
        name for name in names if not name.startswith(OTHER_ENGINES) and NOT_LOADED not in name
    )


def is_loaded(run: Run, ranks: int) -> bool:
    """Whether DeepSpeed's own loader takes every part of it; the notes say where it does not."""
    source = read(DEEPSPEED / run.case / "checkpoint")
    contents = contents_of(source, training_of(source))
    if run.stage == 3:
        return contents.roles == set(MOMENTS) and bool(contents.steps)
    return all(max_ranks(group) >= ranks for group in contents.groups)


def given(run: Run, out: Path, stage: int | None = None) -> Path:
    """Write the universal checkpoint of a run."""
    source = read(DEEPSPEED / run.case / "checkpoint")
    return write(source, lay_out_universal(source, training_of(source), out, stage=stage))


def loaded(runs: Sequence[Run], ranks: int, directory: Path) -> None:
    """Let DeepSpeed load what lies in `RUN/given`, all in one launch."""
    launch("tests.golden.deepspeed_runs.universal", [str(run) for run in runs], ranks, directory)


def differences(runs: Sequence[Run], ranks: int, directory: Path) -> list[str]:
    """What is not equal to the truth of the live engines, bit for bit: masters, state, options of
    groups; but not frozen weights and buffers, which DeepSpeed takes from no universal checkpoint.
    """
    for run in runs:
        (directory / str(run)).mkdir()
        given(run, directory / str(run) / "given")
    loaded(runs, ranks, directory)
    return [found for run in runs for found in _differences(run, ranks, directory / str(run))]


def _differences(run: Run, ranks: int, directory: Path) -> Iterator[str]:
    failure = directory / "failed.txt"
    if failure.exists():
        yield f"{run} at {ranks} ranks: {failure.read_text()[-400:]}"
        return
    live = digests(directory / "truth.safetensors")
    truth = digests(DEEPSPEED / run.case / "truth.safetensors")
    said = json.loads((DEEPSPEED / run.case / "truth.json").read_text())
    groups, frozen = json.loads((directory / "groups.json").read_text()), said["frozen"]
    for group, expected in zip(groups, said["param_groups"], strict=True):
        if {key: group.get(key) for key in expected} != expected:
            yield f"{run} at {ranks} ranks: a param group is {group}, not {expected}"
    for key in sorted(live.keys() | truth.keys()):
        name, _, role = key.rpartition("|")
        if role != "buffer" and name not in frozen and live.get(key) != truth.get(key):
            yield f"{run} at {ranks} ranks: the engine has another {key}"


def matrix(ranks: int, names: Iterable[str]) -> list[Run]:
    """Every case at every stage that DeepSpeed loads it at."""
    runs = [Run(name, stage) for name in names for stage in (1, 2, 3)]
    return [run for run in runs if is_loaded(run, ranks)]


def main() -> None:
    """Every case at stages 1, 2, 3 and 1, 2, 3 ranks; exits 1 where something is not equal."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON of the result")
    options = parser.parse_args()
    from .cases import CASES  # imports torch, which only marked tests may

    names = [name for name in judged_cases() if not CASES[name].builds]
    result: dict[str, object] = {"zerotools": __version__, "deepspeed": "0.19.8"}
    found: dict[str, list[str]] = {}
    for ranks in (1, 2, 3):
        runs, found[str(ranks)] = matrix(ranks, names), []
        for first in range(0, len(runs), LAUNCHED_TOGETHER):
            part = runs[first : first + LAUNCHED_TOGETHER]
            with tempfile.TemporaryDirectory() as directory:
                found[str(ranks)] += differences(part, ranks, Path(directory))
        print(f"{len(runs)} runs at {ranks} ranks: {len(found[str(ranks)])} differences")
        result[f"runs_at_{ranks}"] = [str(run) for run in runs]
    options.out.write_text(json.dumps({**result, "differences": found}, indent=1) + "\n")
    raise SystemExit(any(found.values()))


if __name__ == "__main__":
    main()
