"""Golden checkpoints of real DeepSpeed runs, against the truth of the live engine, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (safetensors finds bfloat16 only where it is imported)
import pytest
from safetensors.numpy import load_file

from tests.golden_files import GOLDEN
from tests.layouts import load
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import PRECISIONS
from zerotools.formats import read, training_of
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.inspection.inspect import inspect

ROOT = GOLDEN / "deepspeed-0.19.8"
CASES = sorted(path.parent for path in GOLDEN.glob("deepspeed-*/*/truth.json"))
DAMAGED = {"z2-fp32-w2-leftovers", "z3-bf16-w2-leftovers"}


def named(path: Path) -> str:
    version = path.parent.name.removeprefix("deepspeed-")
    return path.name if path.parent == ROOT else f"{version}-{path.name}"


@pytest.fixture(params=CASES, ids=named)
def case(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@cache
def checkpoint_of(case: Path) -> Checkpoint:
    """Read once for all tests of a case."""
    return read(case / "checkpoint")


def facts(case: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((case / "truth.json").read_text())
    return said


def truth(case: Path) -> Iterator[tuple[Key, Array]]:
    for name, values in load_file(case / "truth.safetensors").items():
        yield Key(*name.rsplit("|", 1)), values


def is_in_the_files(key: Key, checkpoint: Checkpoint, said: dict[str, Any]) -> bool:
    """Whether DeepSpeed saved it at all, in a form that names it."""
    stage_3 = said["stage"] == 3
    if key.role == "param16" and stage_3:
        return False  # stage 3 saves placeholders in place of the 16-bit weights
    if (
        key.role == "param16"
        and ".experts." in key.name
        and checkpoint.origin.format != "deepspeed"
    ):
        return False  # ds_to_universal leaves the files of experts out
    frozen = key.role == "param" and key.name in said.get("frozen", ())
    if frozen and "exclude-frozen" in said["case"]:
        return False
    if key.role == "param16" and key.name.startswith("tied_modules."):
        return False  # a pipeline's files of layers do not say which are tied
    if not said["stage"] and not trained_with_zero(checkpoint):
        return key.role in ("param", "buffer")  # optimizer state that names no parameter
    if key.role == "step":
        return not _step_is_a_number(key.name, checkpoint)
    return True


def trained_with_zero(checkpoint: Checkpoint) -> bool:
    """Whether flat buffers name their parameters; at stage 0 those of BF16_Optimizer do."""
    return any(key.role == "exp_avg" for key in checkpoint.tensors)


def _step_is_a_number(name: str, checkpoint: Checkpoint) -> bool:
    step = training_of(checkpoint).scalars.get(Key(name, "step"))
    return step is not None and step.dtype is None


def test_there_are_cases_of_every_kind() -> None:
    names = {path.name.split("-")[0] for path in CASES}
    assert {"z0", "z1", "z2", "z3", "universal", "bf16"} <= names
    assert len(CASES) >= 40
    versions = {path.parent.name.removeprefix("deepspeed-").rpartition(".")[0] for path in CASES}
    assert versions == {"0.10", "0.12", "0.14", "0.16", "0.18", "0.19"}


def test_every_tensor_is_what_the_engine_had(case: Path) -> None:
    checkpoint, said = checkpoint_of(case), facts(case)
    compared = 0
    for key, values in truth(case):
        if not is_in_the_files(key, checkpoint, said):
            continue
        ours = load(checkpoint, key)
        expected = values.astype(ours.dtype) if not said["stage"] else values
        assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype), key
        assert ours.tobytes() == expected.tobytes(), key
        compared += 1
    assert compared


def test_nothing_is_invented(case: Path) -> None:
    checkpoint = checkpoint_of(case)
    known = {key for key, _ in truth(case)}
    assert [str(key) for key in checkpoint.tensors if key not in known] == []


def test_the_facts_are_right(case: Path) -> None:
    checkpoint, said = checkpoint_of(case), facts(case)
    origin = checkpoint.origin
    assert dict(checkpoint.aliases) == said.get("aliases", {})
    assert origin.step == said["global_steps"]
    assert origin.framework_version == case.parent.name.removeprefix("deepspeed-")
    assert origin.precision == PRECISIONS[said["dtype"]]
    if origin.format == "deepspeed":
        assert origin.world_size == said["world_size"]
        assert (origin.stage or 0) in (said["stage"], 0)


def test_nothing_is_wrong_with_it(case: Path) -> None:
    problems = inspect(checkpoint_of(case)).problems
    assert bool(problems) == (case.name in DAMAGED), problems


def says_its_groups(case: Path) -> bool:
    """Whether the truth has param groups, and the files name the parameters of theirs."""
    said = facts(case)
    return bool(said.get("param_groups") and said["stage"])


GROUPED = [case for case in CASES if says_its_groups(case)]


@pytest.mark.parametrize("grouped", GROUPED, ids=named)
def test_param_groups_name_their_parameters(grouped: Path) -> None:
    ours = training_of(checkpoint_of(grouped)).groups
    frozen = set(facts(grouped)["frozen"])
    trained = [set(group["names"]) - frozen for group in facts(grouped)["param_groups"]]
    assert [set(group.params) for group in ours] == trained


def test_most_cases_say_their_groups() -> None:
    assert len(GROUPED) >= 60
