"""DeepSpeed trains the same with its state on NVMe, in files of one rank of one job.

Tolerance: 2e-6 relative per loss in fp32, the order of summation.
"""

from __future__ import annotations

import copy
from pathlib import Path
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
from zerotools.ops.conversions.conversion import perform
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.runs import checkpoint_dirs
from zerotoolsd.trainer.rank.failures import EXIT_BAD_JOB, EXIT_STOPPED

pytestmark = [pytest.mark.torch, pytest.mark.deepspeed]

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
    assert checkpoint_dirs.check(path).weights_only
    held = load_file(path / "model.safetensors")
    done = consolidate.prepare(
        runs.checkpoint("torch", 2), tmp_path / "out", consolidate.Options(dtype="fp32")
    )
    perform(done, budget=MemoryBudget(), overwrite=False)
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
    saved = checkpoint_dirs.choose(Path(out)).record
    assert saved is not None
    assert saved.weights_only
    again = run(tmp_path / "again", job(text, **tree, resume_from=out), expect=EXIT_BAD_JOB)
    assert "DeepSpeed does not load optimizer state that it offloaded to NVMe" in again.log()


def test_each_rank_of_each_job_has_a_directory_of_its_own(tmp_path: Path) -> None:
    from zerotoolsd.trainer.engine_deepspeed.nvme import (
        remove_own_directories,
        take_own_directories,
    )

    def taken(output: str, rank: int) -> Path:
        tree = copy.deepcopy(offloaded(tmp_path / "nvme", "optimizer", "param"))
        take_own_directories(tree, tmp_path / output, rank)
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
