"""Universal checkpoints that lack files: nothing is left out in silence."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.formats.deepspeed.damaging import copied, problems_of, refusals
from tests.formats.deepspeed.reading.test_versions import rewrite
from tests.golden_files import DEEPSPEED
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tree_tensors import as_tensor

CASES = sorted(path.name for path in DEEPSPEED.glob("universal-*"))


def parameters(case: str) -> list[str]:
    """Those with state beside the master."""
    found = DEEPSPEED.glob(f"{case}/checkpoint/*/zero/*/exp_avg.pt")
    return sorted(path.parent.name for path in found)


TRAINED = [(case, name) for case in CASES for name in parameters(case)]


@pytest.mark.parametrize(("case", "name"), TRAINED)
def test_a_master_or_a_directory_that_is_lost(case: str, name: str, tmp_path: Path) -> None:
    for lost in ("fp32.pt", None):
        tag = copied(case, tmp_path / str(lost))
        folder = tag / "zero" / name
        (folder / lost).unlink() if lost else shutil.rmtree(folder)
        assert any(f"{folder / 'fp32.pt'} is missing" in said for said in problems_of(tag))
        said = refusals(tag, tmp_path / "out")
        assert {"consolidate", "convert"} <= said.keys()
        assert f"{name} is incomplete" in said["consolidate"]
        assert "fp32.pt is missing" in said["consolidate"]


@pytest.mark.parametrize("role", ["exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("case", CASES)
def test_state_that_is_lost(case: str, role: str, tmp_path: Path) -> None:
    tag = copied(case, tmp_path)
    lost = tag / "zero" / parameters(case)[0] / f"{role}.pt"
    lost.unlink()
    assert any(f"{lost} is missing" in said for said in problems_of(tag))
    said = refusals(tag, tmp_path / "out")
    assert f"({role}) is incomplete" in said["convert"]
    assert "consolidate" not in said  # the weights are whole


@pytest.mark.parametrize("case", ["universal-z1-fp32-w2", "universal-z2-bf16-w3"])
def test_a_step_that_is_lost(case: str, tmp_path: Path) -> None:
    tag = copied(case, tmp_path)
    (tag / "zero" / parameters(case)[0] / "step.pt").unlink()
    assert any("step.pt is missing" in said for said in problems_of(tag))
    assert "convert" in refusals(tag, tmp_path / "out")


def test_a_parameter_that_the_model_file_does_not_list(tmp_path: Path) -> None:
    for case in CASES:
        tag = copied(case, tmp_path / case)
        name = parameters(case)[0]

        def forget(tree: dict[str, Any], name: str = name) -> None:
            for group in tree["param_shapes"]:
                group.pop(name, None)

        for path in tag.glob("*model_states.pt"):
            rewrite(path, forget)
        assert any(f"{tag / 'zero' / name} has the state" in said for said in problems_of(tag))
        assert {"consolidate", "convert"} <= refusals(tag, tmp_path / "out").keys()


def test_a_file_that_was_saved_as_another_kind_of_state(tmp_path: Path) -> None:
    tag = copied(CASES[0], tmp_path)
    folder = tag / "zero" / parameters(CASES[0])[0]
    shutil.copyfile(folder / "exp_avg.pt", folder / "exp_avg_sq.pt")
    assert any("was saved as exp_avg.pt" in said for said in problems_of(tag))
    assert {"consolidate", "convert"} <= refusals(tag, tmp_path / "out").keys()


@pytest.mark.parametrize(
    ("taken", "why"),
    [
        ("norm.weight", "has 17 elements"),
        ("seen", "has the shape"),
        ("layer.weight", "has the shape"),
    ],
)
def test_files_of_another_parameter(taken: str, why: str, tmp_path: Path) -> None:
    tag = copied("universal-z1-fp32-w2", tmp_path)
    shutil.copyfile(tag / "zero" / taken / "fp32.pt", tag / "zero/unused.weight/fp32.pt")
    said = refusals(tag, tmp_path / "out")
    assert why in said["consolidate"]
    assert why in said["convert"]


def test_masters_of_another_save_than_the_weights(tmp_path: Path) -> None:
    tag = copied("universal-z2-bf16-w3", tmp_path)
    path = tag / "zero/norm.weight/fp32.pt"
    file = TorchFile.open(path.parent, path.name)
    stored = as_tensor(file.tree["param"])
    assert stored is not None
    raw = bytearray(path.read_bytes())
    at = file.first_byte(stored)
    raw[at : at + 4] = b"\0\0\xc8\x42"
    path.write_bytes(raw)
    said = refusals(tag, tmp_path / "out")
    assert "norm.weight is not equal to its master" in said["consolidate"]
    assert "convert" in said


def test_the_state_of_all_groups_is_missing(tmp_path: Path) -> None:
    tag = copied(CASES[0], tmp_path)
    (tag / "zero/optimizer_state.pt").unlink()
    assert any("optimizer_state.pt is missing" in said for said in problems_of(tag))
    assert "convert" in refusals(tag, tmp_path / "out")


def test_the_commands_end_with_the_status_of_a_bad_file(tmp_path: Path) -> None:
    tag = copied(CASES[0], tmp_path)
    shutil.rmtree(tag / "zero" / parameters(CASES[0])[0])
    out = tmp_path / "out"
    commands = {("inspect",): 1, ("consolidate", str(out)): 3, ("convert", str(out), "--to=dcp"): 3}
    for (command, *rest), status in commands.items():
        done = subprocess.run(
            [sys.executable, "-m", "zerotools", command, str(tag), *rest],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (command, done.returncode) == (command, status), done.stderr
        assert ".pt is missing" in " ".join((done.stdout + done.stderr).split())
    assert not out.exists()
