"""What DeepSpeed can compile where there is no nvcc, and which of its errors no restart mends."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from safetensors.numpy import load_file

from harness.launching import TINY_LLAMA, job, run, start
from tests.daemon.trainer.engine_deepspeed.test_deepspeed import TOLERANCE, TRAIN, config, of
from tests.daemon.trainer.several import Runs, run_all
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.runs import find_job_checkpoints
from zerotoolsd.trainer.rank.rank_errors import EXIT_BAD_JOB, EXIT_STOPPED

pytestmark = [pytest.mark.torch, pytest.mark.deepspeed]


@pytest.fixture
def deepspeed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The package, as on a machine with a compiler for C++ and none for CUDA."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    found = pytest.importorskip("deepspeed")
    from torch.utils import cpp_extension

    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    for program in ("g++", "ninja"):
        (tmp_path / program).touch(mode=0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return found


@pytest.mark.parametrize(
    ("nvcc", "why"),
    [
        (None, "it needs nvcc: CUDA_HOME does not exist"),
        ("release 11.8, V11.8.89", "nvcc has CUDA 11.8, but torch has CUDA "),
    ],
)
def test_without_nvcc_torchs_adam_serves_on_gpus(
    deepspeed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nvcc: str | None, why: str
) -> None:
    from deepspeed.ops.op_builder.fused_adam import FusedAdamBuilder
    from torch.utils import cpp_extension

    from zerotoolsd.trainer.engine_deepspeed.setup_deepspeed import make_adam_ready

    if nvcc is not None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "nvcc").write_text(f"#!/bin/sh\necho {nvcc}\n")
        (tmp_path / "bin" / "nvcc").chmod(0o700)
        monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path))
    assert FusedAdamBuilder().is_compatible(False)  # what it says on every machine
    on_gpus = SimpleNamespace(create_op_builder=lambda name: FusedAdamBuilder())
    package = SimpleNamespace(
        accelerator=SimpleNamespace(get_accelerator=lambda: on_gpus),
        ops=deepspeed.ops,
        git_version_info=deepspeed.git_version_info,
    )
    parameters: dict[str, Any] = {"lr": 1e-3, "bias_correction": True}
    config: dict[str, Any] = {"optimizer": {"type": "AdamW", "params": parameters}}
    said: list[str] = []
    make_adam_ready(package, config, said.append)
    assert parameters == {"lr": 1e-3, "torch_adam": True, "weight_decay": 0.0}
    assert f"FusedAdam cannot be built here ({why}" in said[0]
    config["optimizer"]["params"] = {"bias_correction": False}
    with pytest.raises(BadRequest, match="and torch's Adam always corrects"):
        make_adam_ready(package, config, said.append)


def test_an_optimizer_that_needs_nvcc_is_refused_at_submit(deepspeed: Any) -> None:
    from zerotools.jobs.preflight.deepspeed_config_check import deepspeed_refusal

    config = {"train_batch_size": 1, "optimizer": {"type": "Lamb", "params": {"lr": 1e-3}}}
    said = deepspeed_refusal(config, 1, "cuda")
    assert said is not None
    assert said.startswith("it cannot compile fused_lamb for lamb here: CUDA_HOME does not exist")
    assert deepspeed_refusal(config, 1, "cpu") is None


@pytest.mark.parametrize(
    ("error", "is_of_the_job"),
    [
        (OSError("CUDA_HOME environment variable is not set. Please set it"), True),
        (RuntimeError("Unable to JIT load the async_io op due to it not being compatible"), True),
        (RuntimeError("Ninja is required to load C++ extensions"), True),
        (AssertionError("stage3_max_live_parameters"), True),
        (NotImplementedError("no such optimizer"), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_what_is_not_installed_is_not_tried_again(error: Exception, is_of_the_job: bool) -> None:
    from zerotoolsd.trainer.engine_deepspeed.setup_deepspeed import refused_by_deepspeed

    with pytest.raises(BadRequest if is_of_the_job else type(error)), refused_by_deepspeed():
        raise error


# DeepSpeed leaves parts of less than 1 MiB in memory: a matrix of an MLP is twice that.
LARGE = {"config": {**TINY_LLAMA, "hidden_size": 256, "intermediate_size": 2048}}
LARGE["config"]["num_hidden_layers"] = 1


def offloaded(where: Path, *what: str) -> dict[str, Any]:
    """A configuration that offloads `what` to the directory `where`."""
    tree = config(3)
    for each in what:
        section = {"device": "nvme", "nvme_path": str(where)}
        if each == "param":
            section |= {"buffer_size": 700_000, "buffer_count": 12}
        tree["zero_optimization"][f"offload_{each}"] = section
    return tree


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    """All on two ranks; the offloaded ones share a directory."""
    directory = tmp_path_factory.mktemp("nvme")
    where = directory / "nvme"
    jobs = {"torch": {"train": TRAIN, "checkpoint": {"every": 2}}}
    jobs["optimizer"] = of(3, offloaded(where, "optimizer"), checkpoint={"every": 2})
    jobs["both"] = of(3, offloaded(where, "optimizer", "param"), checkpoint={"every": 2})
    return run_all(directory / "runs", text, 2, {n: {**j, "model": LARGE} for n, j in jobs.items()})


@pytest.mark.aio
@pytest.mark.parametrize("name", ["optimizer", "both"])
def test_losses_are_those_of_engine_torch(runs: Runs, name: str) -> None:
    assert runs.losses(name) == pytest.approx(runs.losses("torch"), rel=TOLERANCE)
    assert runs.report[name]["evaluated"] == pytest.approx(runs.losses(name)[0], rel=TOLERANCE)


@pytest.mark.aio
@pytest.mark.parametrize("name", ["optimizer", "both"])
def test_checkpoints_hold_the_weights_alone(runs: Runs, tmp_path: Path, name: str) -> None:
    path = runs.checkpoint(name, 2)
    assert find_job_checkpoints.verify_checkpoint_files(path).weights_only
    held = load_file(path / "model.safetensors")
    done = consolidate.prepare_export(
        runs.checkpoint("torch", 2), tmp_path / "out", consolidate.Options(dtype="fp32")
    )
    perform_conversion(done, budget=MemoryBudget(), overwrite=False)
    wanted = load_file(tmp_path / "out/model.safetensors")
    assert held.keys() == wanted.keys()
    assert all(numpy.allclose(held[key], wanted[key], atol=1e-4) for key in held)


@pytest.mark.aio
def test_a_stop_saves_leaves_nothing_behind_and_is_not_gone_on_from(
    tmp_path: Path, text: Path
) -> None:
    where, out = tmp_path / "nvme", str(tmp_path / "out")
    tree = of(3, offloaded(where, "optimizer", "param"), model=LARGE, output_dir=out)
    tree["train"]["steps"] = 100_000
    attempt = start(tmp_path / "first", job(text, **tree))
    attempt.mailbox.wait_for("step")
    assert [path.name for path in where.rglob("exp_avg-*.swp")] != []
    attempt.processes[0].terminate()
    assert attempt.finish() == [EXIT_STOPPED], attempt.log()
    assert list(where.iterdir()) == []
    saved = find_job_checkpoints.newest_valid(Path(out)).record
    assert saved is not None
    assert saved.weights_only
    again = run(tmp_path / "again", job(text, **tree, resume_from=out), expect=EXIT_BAD_JOB)
    assert "DeepSpeed does not load optimizer state that it offloaded to NVMe" in again.log()


def test_each_rank_of_each_job_has_a_directory_of_its_own(tmp_path: Path) -> None:
    from zerotoolsd.trainer.engine_deepspeed.setup_deepspeed import (
        make_own_directories,
        remove_own_directories,
    )

    def taken(output: str, rank: int) -> Path:
        tree = copy.deepcopy(offloaded(tmp_path / "nvme", "optimizer", "param"))
        make_own_directories(tree, tmp_path / output, rank)
        zero = tree["zero_optimization"]
        [own] = {zero[f"offload_{what}"]["nvme_path"] for what in ("optimizer", "param")}
        return Path(own)

    places = [taken("one", 0), taken("one", 1), taken("two", 0)]
    assert len(set(places)) == 3
    assert all((tmp_path / "nvme") in place.parents for place in places)
    (places[0] / "left.swp").write_text("by an attempt that was killed")
    assert taken("one", 0) == places[0]
    assert list(places[0].iterdir()) == []
    spec = job_from_dict(
        job(
            Path("/text"),
            **of(3, offloaded(tmp_path / "nvme", "param")),
            output_dir=str(tmp_path / "one"),
        ),
        source="job",
    )
    remove_own_directories(spec, 0)
    assert [place.exists() for place in places] == [False, True, True]
    remove_own_directories(spec, 1)
    assert list((tmp_path / "nvme").iterdir()) == [places[2].parent]
    (tmp_path / "nvme").rename(tmp_path / "away")
    (tmp_path / "nvme").write_text("")
    with pytest.raises(BadRequest, match=r"nvme_path: .*: Not a directory"):
        taken("one", 0)
