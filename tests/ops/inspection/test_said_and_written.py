"""What `inspect --json` says of a run is what `convert` writes: for every golden checkpoint, read
as plain values from the file that `convert --to torch` makes, which has a place for all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import GOLDEN, OTHER_VERSIONS, every_checkpoint
from zerotools import formats
from zerotools.formats.torch_optimizers import NUMBERED_STATE
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.conversions.convert import prepare_convert
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.inspect import inspect, to_json
from zerotools.ops.inspection.training_summary import json_value

CHECKPOINTS = every_checkpoint()
"""Every second of those of each program always; all in the full matrix."""
MADE_UP = "trained parameters are one param group"


@dataclass(frozen=True)
class Written:
    """The tree of `checkpoint.pt`, and what `convert` said."""

    tree: Mapping[str, Any]
    notes: tuple[str, ...]
    dropped: frozenset[str]

    @classmethod
    def of(cls, path: Path, out: Path, asked: Mapping[str, Any]) -> Written:
        conversion = prepare_convert(path, out, "torch", {**asked, "force": True})
        assert isinstance(conversion, Conversion)
        perform_conversion(conversion, budget=MemoryBudget(workers=1), overwrite=False)
        tree = TorchFile.open(out, "checkpoint.pt").tree
        assert isinstance(tree, dict)
        dropped = frozenset(each.what for each in conversion.target.dropped)
        return cls(tree, tuple(conversion.notes), dropped)

    @property
    def groups(self) -> list[dict[str, Any]]:
        saved: list[dict[str, Any]] = self.tree.get("optimizer", {}).get("param_groups", [])
        return saved

    @property
    def frozen_elements(self) -> int:
        model = self.tree["model"]
        return sum(prod(model[name].shape) for name in self.tree.get("frozen_names", ()))


def needed(said: Mapping[str, Any]) -> dict[str, Any]:
    """What torch's optimizer has to have and the checkpoint does not say."""
    groups = said["param_groups"] or [{"hyperparameters": {}}]
    has_state = said["optimizer"] is not None and said["optimizer"]["states"]
    lacks = any("lr" not in group["hyperparameters"] for group in groups)
    return {"lr": 0.5} if has_state and lacks else {}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.full if number % 2 else ())
        for number, path in enumerate(CHECKPOINTS)
    ],
    ids=lambda path: str(path.relative_to(GOLDEN)).removesuffix("/checkpoint"),
)
def test_the_run_that_inspect_shows_is_the_one_that_convert_writes(
    path: Path, tmp_path: Path
) -> None:
    said = to_json(inspect(formats.read_any(path)))
    written = Written.of(path, tmp_path / "out", needed(said))
    tree = written.tree
    by_number = NUMBERED_STATE in said["notes"]  # `convert` reads it, and `inspect` does not
    if not by_number:
        compare_groups(said["param_groups"], written)
        assert active_scale(said["loss_scaler"]) == json_value(tree.get("loss_scale"))
    assert (said["optimizer"] or {}).get("name") == tree.get("optimizer_name")
    assert (said["step"], said["skipped_steps"]) == (tree.get("steps"), tree.get("skipped_steps"))
    if "lr_scheduler" not in written.dropped:  # it holds objects: a file of plain values has none
        assert said["lr_scheduler"] == json_value(tree.get("lr_scheduler"))
    # Where no file says in what the run computed, the type of the weights is shown.
    assert tree.get("precision") in (None, said["weights_dtype"])
    stored = {tensor.dtype.name for tensor in tree["model"].values()}
    assert by_number or {said["weights_dtype"], said["masters_dtype"]} & stored
    assert said["frozen_parameters"] in (None, written.frozen_elements)


def compare_groups(said: list[dict[str, Any]] | None, written: Written) -> None:
    """The same parameters in the same order. `convert` may add options from the configuration and
    the command line, and what it adds as a whole it says."""
    if said is None:
        assert not written.groups or any(MADE_UP in note for note in written.notes)
        return
    assert len(said) == len(written.groups)
    for shown, group in zip(said, written.groups, strict=True):
        assert shown["params"] == group.get("param_names", group["params"])
        assert json_value(group).items() >= shown["hyperparameters"].items()


def active_scale(scaler: dict[str, Any] | None) -> dict[str, Any] | None:
    """The scaler as a torch file has it: none that multiplies by 1."""
    if scaler is None or (scaler["cur_scale"] == 1 and not scaler["dynamic"]):
        return None
    rest = {name: value for name, value in scaler.items() if name not in ("class", "cur_scale")}
    return {"scale": scaler["cur_scale"], **rest}


def test_every_directory_of_golden_files_is_met() -> None:
    met = {path.relative_to(GOLDEN).parts[0] for path in CHECKPOINTS}
    named = {path.parent.name for path in GOLDEN.glob("*/*") if path.is_dir()}
    cases = {name for name in named if not name.endswith("_runs")}  # programs, which have caches
    models = [path.parent for path in GOLDEN.glob("*/*/model")]
    alone = {path.parent.name for path in models if not (path / "checkpoint").is_dir()}
    of_no_run = {"datasets-5.2.0", *alone}  # to train on, and quantised weights
    assert cases - met == of_no_run | OTHER_VERSIONS
    assert len(of_no_run) == 6
    assert len(CHECKPOINTS) >= 100
