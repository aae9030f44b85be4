"""Tensor-parallel ranks merged by what the user says, and refused where nobody says it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.formats.deepspeed.reading.test_golden import ROOT, truth
from tests.formats.deepspeed.reading.test_versions import rewrite
from tests.layouts import load
from zerotools import formats
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats import read, training_of

CASE = ROOT / "tensor-parallel-z2-fp32-w2"
LAYOUT = r"""
[[rule]]
pattern = ".*(o_proj|down_proj)\\.weight"
split = 1

[[rule]]
pattern = ".*(norm\\.weight|layernorm\\.weight|embed_tokens\\.weight)"
replicated = true

[[rule]]
pattern = ".*(q_proj|k_proj|v_proj|gate_proj|up_proj|lm_head)\\.weight"
split = 0
"""


@pytest.fixture
def unexplained(tmp_path: Path) -> Path:
    """A copy of the case that does not say how its ranks share the weights."""
    shutil.copytree(CASE / "checkpoint", tmp_path / "checkpoint")

    def forget(tree: dict[str, Any]) -> None:
        tree.pop("universal_checkpoint_info", None)
        tree.get("optimizer_state_dict", {}).pop("universal_checkpoint_info", None)

    for path in (tmp_path / "checkpoint").glob("*/*.pt"):
        rewrite(path, forget)
    return tmp_path / "checkpoint"


def test_nothing_is_guessed(unexplained: Path) -> None:
    with pytest.raises(Unsupported, match=r"tensor-parallel ranks.*pass --layout rules\.toml"):
        read(unexplained)


def test_rules_of_the_user(unexplained: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(LAYOUT)
    checkpoint = read(unexplained, layout=rules)
    for key, values in truth(CASE):
        assert load(checkpoint, key).tobytes() == values.tobytes(), key


def test_rules_are_passed_to_the_commands(unexplained: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(LAYOUT)
    command = [sys.executable, "-m", "zerotools", "consolidate", str(unexplained)]
    refused = subprocess.run([*command, str(tmp_path / "a")], capture_output=True, check=False)
    assert refused.returncode == 4
    made = subprocess.run([*command, str(tmp_path / "b"), "--layout", str(rules)], check=False)
    assert made.returncode == 0
    with pytest.raises(BadRequest, match="safetensors: run the command without --layout"):
        formats.read(tmp_path / "b", layout=rules)


def test_a_name_that_no_rule_matches(unexplained: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(LAYOUT.replace("up_proj", "nothing"))
    with pytest.raises(
        Unsupported,
        match=r"how model.*up_proj\.weight is split .*; add a rule for it to the file of --layout",
    ):
        read(unexplained, layout=rules)


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        "[[rule]]\nsplit = 0",
        '[[rule]]\npattern = "x"',
        '[[rule]]\npattern = "x"\nfused = 3',
    ],
)
def test_rules_that_are_none(unexplained: Path, tmp_path: Path, text: str) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(text)
    with pytest.raises(BadRequest, match=r"rules\.toml"):
        read(unexplained, layout=rules)


def test_a_file_of_rules_that_is_missing_is_not_wrong_toml(
    unexplained: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadRequest, match=r"^.*/lost\.toml cannot be read: No such file"):
        read(unexplained, layout=tmp_path / "lost.toml")


def change_map(directory: Path, name: str, key: str, value: Any) -> None:
    """Change one field of the first piece of every affine map that names `name`."""

    def change(tree: dict[str, Any]) -> None:
        info = tree.get("universal_checkpoint_info")
        for pattern, entry in ((info or {}).get("affine_map", {}).get("params", {})).items():
            if name in pattern:
                for rank in entry["ranks"].values():
                    rank["pieces"][0][key] = value

    for path in directory.glob("*/*model_states.pt"):
        rewrite(path, change)


@pytest.fixture
def mapped(tmp_path: Path) -> Path:
    shutil.copytree(CASE / "checkpoint", tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_scaled_copies_are_refused(mapped: Path) -> None:
    change_map(mapped, "o_proj", "scale", 0.5)
    with pytest.raises(Unsupported, match=r"o_proj\.weight scaled by 0\.5"):
        read(mapped)


def test_maps_that_are_no_blocks_are_refused(mapped: Path) -> None:
    change_map(mapped, "o_proj", "source", [0, [7, 3]])
    with pytest.raises(Unsupported, match=r"o_proj\.weight, a piece is not a rectangular part"):
        read(mapped)
    change_map(mapped, "o_proj", "source", "everywhere")
    with pytest.raises(BadFile, match=r"o_proj\.weight, a piece has no offset and strides"):
        read(mapped)


def test_a_tensor_rank_that_is_missing(mapped: Path) -> None:
    for path in mapped.glob("*/*mp_rank_01*"):
        path.unlink()
    with pytest.raises(BadFile, match=r"mp_rank_01.* is missing; the run had 2 model-parallel"):
        read(mapped)


@pytest.mark.parametrize("case", ["tensor-parallel-z1-bf16-w4", "pipeline-z1-fp32-w4"])
def test_param_groups_are_those_of_the_run(case: str) -> None:
    checkpoint = read(ROOT / case / "checkpoint")
    (group,) = training_of(checkpoint).groups
    trained = {key.name for key in checkpoint.tensors if key.role == "exp_avg"}
    assert sorted(group.params) == sorted(trained)
