"""From a directory of the Hub through training and back to one, at every way out of a checkpoint.

The directory begins as the export ends where nothing is learnt: a learning rate of 0 shows that
every element is where it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from harness.launching import TINY_GPT2
from tests.daemon.trainer.engine_deepspeed.test_deepspeed import config
from tests.daemon.trainer.model.test_match_pretrained import MIXTRAL, saved, unprefixed
from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools.ops.conversions import consolidate, convert, reshard
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget

pytestmark = [pytest.mark.torch, pytest.mark.deepspeed, pytest.mark.peft]
STEPS = 2
BY_DEEPSPEED = (1, 3) if FULL else (3,)
Tensors = dict[str, torch.Tensor]


def frozen_in_time(model: Path, **changes: Any) -> dict[str, Any]:
    """A job that learns nothing."""
    train = {"steps": STEPS, "learning_rate": 0.0, "weight_decay": 0.0, "batch_size": 4}
    return {
        "model": {"path": str(model)},
        "data": {"tokenizer": "bytes"},
        "train": train,
        "zero": {"stage": 3},
        **changes,
    }


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "experts": saved(root / "experts", MIXTRAL),
        "prefix": saved(root / "prefix", TINY_GPT2, unprefixed),
    }


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, text: Path, directories: dict[str, Path]
) -> Runs:
    """All on two ranks."""
    experts, prefix = directories["experts"], directories["prefix"]
    jobs = {
        "experts": frozen_in_time(experts),
        "prefix": frozen_in_time(prefix),
        "adapters": frozen_in_time(prefix, lora={"rank": 2}),
        "fresh": {**frozen_in_time(experts), "model": {"config": MIXTRAL}},
    }
    return run_all(tmp_path_factory.mktemp("runs"), text, 2, jobs, blocks=2)


@pytest.fixture(scope="module")
def by_deepspeed(
    tmp_path_factory: pytest.TempPathFactory, text: Path, directories: dict[str, Path]
) -> Runs:
    jobs = {}
    for stage in BY_DEEPSPEED:
        tree = config(stage)
        tree["optimizer"]["params"] |= {"lr": 0.0, "weight_decay": 0.0}
        of_engine = {"engine": "deepspeed", "deepspeed": {"config": tree}, "zero": {"stage": stage}}
        jobs[f"stage-{stage}"] = frozen_in_time(directories["experts"], **of_engine)
    return run_all(tmp_path_factory.mktemp("deepspeed"), text, 2, jobs)


def written(conversion: Any, directory: Path) -> Tensors:
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    return load_file(directory / "model.safetensors")


def exported(step: Path, directory: Path, **options: Any) -> Tensors:
    options.setdefault("dtype", "fp32")
    done = consolidate.prepare_export(step, directory, consolidate.Options(**options))
    return written(done, directory)


def assert_same(found: Tensors, directory: Path, dtype: torch.dtype = torch.float32) -> None:
    wanted = load_file(directory / "model.safetensors")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor.to(dtype)), name


@pytest.mark.parametrize("name", ["experts", "prefix", "adapters"])
def test_an_export_is_the_directory_that_it_began_with(
    runs: Runs, directories: dict[str, Path], tmp_path: Path, name: str
) -> None:
    directory = directories["prefix" if name == "adapters" else name]
    step = runs.checkpoint(name, STEPS)
    assert_same(exported(step, tmp_path / "fp32"), directory)
    assert_same(exported(step, tmp_path / "like", dtype="auto", like=directory), directory)
    assert_same(exported(step, tmp_path / "bf16", dtype="bf16"), directory, torch.bfloat16)


@pytest.mark.parametrize("name", [f"stage-{stage}" for stage in BY_DEEPSPEED])
def test_so_is_one_of_deepspeed(
    by_deepspeed: Runs, directories: dict[str, Path], tmp_path: Path, name: str
) -> None:
    found = exported(by_deepspeed.checkpoint(name, STEPS), tmp_path / "out")
    assert_same(found, directories["experts"])


def test_so_is_one_of_a_resharded_checkpoint(
    runs: Runs, directories: dict[str, Path], tmp_path: Path
) -> None:
    done = reshard.prepare_reshard(
        runs.checkpoint("experts", STEPS), tmp_path / "three", world_size=3
    )
    assert isinstance(done, Conversion)
    perform_conversion(done, budget=MemoryBudget(), overwrite=False)
    assert_same(exported(tmp_path / "three", tmp_path / "out"), directories["experts"])


def test_convert_writes_models_as_the_hub_has_them(
    runs: Runs, directories: dict[str, Path], tmp_path: Path
) -> None:
    step = runs.checkpoint("experts", STEPS)
    done = convert.prepare_convert(step, tmp_path / "out", "safetensors", {})
    assert_same(written(done, tmp_path / "out"), directories["experts"])


def test_a_model_of_a_config_is_exported_as_transformers_saves_it(
    runs: Runs, directories: dict[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    found = exported(runs.checkpoint("fresh", STEPS), tmp_path / "out")
    wanted = load_file(directories["experts"] / "model.safetensors")
    assert {n: t.shape for n, t in found.items()} == {n: t.shape for n, t in wanted.items()}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    model.save_pretrained(tmp_path / "again")
    assert_same(found, tmp_path / "again")


def test_losses_are_those_of_the_directorys_model(
    runs: Runs, by_deepspeed: Runs, directories: dict[str, Path]
) -> None:
    """The same weights, whichever engine and stage put the experts together."""
    wanted = pytest.approx(runs.losses("experts"), rel=2e-6)
    for stage in BY_DEEPSPEED:
        assert by_deepspeed.losses(f"stage-{stage}") == wanted
    assert runs.losses("prefix") == pytest.approx(runs.losses("adapters"), rel=2e-6)
