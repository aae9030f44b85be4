"""Engine `deepspeed` trains as engine `torch` does, resumes bit for bit, and its checkpoints serve
the tools.

Tolerance: 2e-6 relative per loss in fp32, the order of summation; with DeepSpeedCPUAdam 1e-5.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import load_file

import zerotools
from harness.launching import ROOT, TINY_GPT2, job, run, start
from tests.daemon.trainer.nodes import Run, finished, steps
from tests.daemon.trainer.several import Runs, run_all
from tests.daemon.trainer.test_finetuning import Jobs
from tests.matrices import FULL
from zerotools import formats
from zerotools.jobs.jobfile_tables.spec import FP16_ON_CPU
from zerotools.ops.conversions import consolidate, reshard
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.runs import find_job_checkpoints
from zerotoolsd.trainer.rank.rank_errors import EXIT_BAD_JOB, EXIT_STOPPED

pytestmark = [
    pytest.mark.torch,
    pytest.mark.deepspeed,
    pytest.mark.dear(40, "every stage on both engines"),
]
STAGES = (0, 1, 2, 3) if FULL else (0, 2, 3)
"""Stages 1 and 2 are one optimizer of DeepSpeed's; a schedule is resumed at stage 1."""
REFUSALS = ROOT / "tests/daemon/trainer/rank_refusals.py"
TOLERANCE, CPU_ADAM = 2e-6, 1e-5
CPU = {"device": "cpu"}
TIED = {"config": {**TINY_GPT2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}}
TRAIN = {"steps": 3, "learning_rate": 1e-2}
CHUNKED = {"chunked_loss": "on"}
RESUMED = [*(f"z{stage}" for stage in (STAGES if FULL else (3,))), "z1-warmup", "z2-fp16"]
"""One that is cut, a schedule and a loss scale; of the full matrix every stage."""
RESHARDED = (1, 2, 3) if FULL else (2, 3)


def config(stage: int, *, offload: tuple[str, ...] = (), **keys: Any) -> dict[str, Any]:
    parameters = {"lr": 1e-2, "betas": [0.9, 0.95], "weight_decay": 0.1, "torch_adam": True}
    zero = {"stage": stage, **{f"offload_{what}": CPU for what in offload}}
    return {
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": parameters},
        "gradient_clipping": 1.0,
        **keys,
    }


def of(stage: int, tree: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A job of the engine at `stage`."""
    train = {**TRAIN, **changes.pop("train", {})}
    return {
        "engine": "deepspeed",
        "zero": {"stage": stage},
        "train": train,
        "deepspeed": {"config": config(stage) if tree is None else tree},
        **changes,
    }


def jobs(runs: Path, data: Path) -> dict[str, dict[str, Any]]:
    """Every stage and a run that goes on from its second step; offload; precisions; schedules; and
    the same by engine torch."""
    found: dict[str, dict[str, Any]] = {"torch": {"train": TRAIN}}
    found["torch-gpt2"] = {"train": TRAIN, "model": TIED}
    found["torch-sgd"] = {"train": {**TRAIN, "optimizer": "sgd", "schedule": "cosine"}}
    for stage in STAGES:
        found[f"z{stage}"] = of(stage)
    batch = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 3}
    found["z3-gpt2"] = of(3, config(3, **batch), model=TIED, train={"micro_batch_size": 3})
    found["z2-chunked"] = of(2, config(2, **batch), train={"micro_batch_size": 3} | CHUNKED)
    unmanaged = config(2, managed_gradient_accumulation=False)
    found["z2-unmanaged"] = of(2, unmanaged, train={"micro_batch_size": 2})
    found["z3-cpu"] = of(3, config(3, offload=("optimizer", "param")))
    built = config(2, offload=("optimizer",))
    del built["optimizer"]["params"]["torch_adam"]
    found["z2-cpu-adam"] = of(2, built)
    sgd = {"zero_optimization": {"stage": 2}}
    found["z2-sgd"] = of(2, sgd, train={"optimizer": "sgd", "schedule": "cosine"})
    warmup = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 2}}
    warmup["params"]["warmup_type"] = "linear"
    scheduled = {"tree": config(1, scheduler=warmup), "train": {"steps": 4}}
    found["z1-warmup"] = of(1, **scheduled)
    if FULL:  # else `test_foreign` goes on in bf16 with DeepSpeed's own losses
        found["z3-bf16"] = of(3, config(3, bf16={"enabled": True}), train={"precision": "bf16"})
    fp16 = {"enabled": True, "initial_scale_power": 21, "loss_scale_window": 3}
    half = {"precision": "fp16", "steps": 8}
    scale = {"initial_scale_power": 21, "loss_scale_window": 3}
    common = {"train": half, "env": {FP16_ON_CPU: "1"}, "fp16": scale}
    found["z2-fp16"] = of(2, config(2, fp16=fp16), **common)
    for name in RESUMED:
        found[f"resumed-{name}"] = {**found[name], "resume_from": str(step(runs, name))}
    for name in (*(f"z{stage}" for stage in STAGES), "z3-gpt2", *RESUMED):
        found[name]["checkpoint"] = {"every": 2}
    make = Jobs(data)
    asked = {"files": [make.other], "predict_with_generate": True, "max_new_tokens": 8}
    said = make.of(train=TRAIN, eval=asked)
    found |= {"torch-said": said, "z3-said": of(3, **said)}
    return found


def step(runs: Path, name: str, number: int = 2) -> Path:
    return runs / name / "out" / find_job_checkpoints.directory_name(number)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    """All on two ranks."""
    directory = tmp_path_factory.mktemp("deepspeed")
    data = tmp_path_factory.mktemp("data")
    ends = {"z0", "z2", "z3-gpt2", *RESUMED, *(f"resumed-{name}" for name in RESUMED)}
    every = jobs(directory / "out", data)
    return run_all(directory, text, 2, every, ends=ends, asked=("evaluates",), blocks=2)


def changed(source: Path, out: Path, ranks: int) -> Path:
    """`zerotools reshard`."""
    done = reshard.prepare_reshard(source, out, world_size=ranks)
    assert isinstance(done, Conversion)
    perform_conversion(done, budget=MemoryBudget(), overwrite=False)
    return out


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory, text: Path, runs: Runs) -> Runs:
    """On three ranks, from resharded checkpoints; and at stage 3 from consolidated weights."""
    directory = tmp_path_factory.mktemp("moved")
    found = {}
    for stage in RESHARDED:
        out = changed(runs.checkpoint(f"z{stage}", 2), directory / f"z{stage}", 3)
        found[f"z{stage}"] = of(stage, resume_from=str(out))
    model = {"model": {"path": str(weights(runs.checkpoint("z3", 2), directory / "model"))}}
    found["torch"] = {"train": TRAIN, **model}
    found["z3-path"] = of(3, **model)
    ends = [f"z{stage}" for stage in RESHARDED]
    return run_all(directory / "runs", text, 3, found, ends=ends, blocks=2)


def weights(source: Path, out: Path) -> Path:
    """`zerotools consolidate --dtype fp32`."""
    done = consolidate.prepare_export(source, out, consolidate.Options(dtype="fp32"))
    perform_conversion(done, budget=MemoryBudget(), overwrite=False)
    return out


AS_TORCH = [*(f"z{stage}" for stage in STAGES), "z3-cpu", "z2-unmanaged", "z2-chunked"]


@pytest.mark.parametrize("name", AS_TORCH)
def test_losses_are_those_of_engine_torch(runs: Runs, name: str) -> None:
    assert runs.losses(name) == pytest.approx(runs.losses("torch"), rel=TOLERANCE)
    wanted = pytest.approx(runs.of("torch", "grad_norm"), rel=1e-4)
    assert runs.of(name, "grad_norm") == wanted
    assert runs.report[name]["evaluated"] == pytest.approx(runs.losses(name)[0], rel=TOLERANCE)


def test_the_same_is_generated_as_by_engine_torch(runs: Runs) -> None:
    """All ranks gather the weights for each token of the longest text."""
    said, other = (
        (runs.directory / name / "out/predictions/step-00000003.jsonl").read_text("utf-8")
        for name in ("z3-said", "torch-said")
    )
    assert said == other
    assert len(said.splitlines()) == 7


def test_deepspeeds_own_adam_on_the_cpu(runs: Runs) -> None:
    assert runs.losses("z2-cpu-adam") == pytest.approx(runs.losses("torch"), rel=CPU_ADAM)


def test_tied_weights_are_cut_once_and_batches_accumulated(runs: Runs) -> None:
    assert runs.losses("z3-gpt2") == pytest.approx(runs.losses("torch-gpt2"), rel=TOLERANCE)
    path = runs.checkpoint("z3-gpt2", 2)
    assert formats.read(path).aliases == {"lm_head.weight": "transformer.wte.weight"}


def test_a_config_without_optimizer_and_scheduler_takes_the_jobs(runs: Runs) -> None:
    for what in ("loss", "learning_rate"):
        wanted = pytest.approx(runs.of("torch-sgd", what), rel=TOLERANCE)
        assert runs.of("z2-sgd", what) == wanted


def test_the_scheduler_of_the_config_rules(runs: Runs) -> None:
    assert runs.of("z1-warmup", "learning_rate") == pytest.approx([0.0, 0.0, 5e-3, 1e-2])


@pytest.mark.parametrize("name", RESUMED)
def test_resumed_runs_go_on_bit_for_bit(runs: Runs, name: str) -> None:
    for what in ("loss", "grad_norm", "learning_rate", "loss_scale", "skipped"):
        assert runs.of(f"resumed-{name}", what) == runs.of(name, what)[2:], what
    last = {"z2-fp16": 8, "z1-warmup": 4}.get(name, 3)
    ended, again = (tensors(runs.checkpoint(each, last)) for each in (name, f"resumed-{name}"))
    assert ended.keys() == again.keys()
    assert all(ended[key].tobytes() == again[key].tobytes() for key in ended)


def tensors(path: Path) -> dict[tuple[str, str], numpy.ndarray[Any, Any]]:
    """Every tensor of a checkpoint, by name and role."""
    reader = zerotools.open(path)
    return {
        (key.name, key.role): reader[key.name, key.role].numpy()
        for key in formats.read(path).tensors
    }


@pytest.mark.full
def test_halves_stay_near(runs: Runs) -> None:
    wanted = runs.losses("torch")
    assert runs.losses("z3-bf16") == pytest.approx(wanted, rel=1e-2)


def test_overflows_are_skipped_counted_and_recorded(runs: Runs) -> None:
    skips = runs.of("z2-fp16", "is_skipped")
    assert skips[0]
    assert not skips[-1]
    record = find_job_checkpoints.verify_checkpoint_files(runs.checkpoint("z2-fp16", 8))
    assert record.skipped_steps == sum(skips) == runs.of("z2-fp16", "skipped")[-1]
    assert record.loss_scale is not None
    assert record.loss_scale.cur_iter == 8
    assert record.loss_scale.scale_window == 3


def test_the_record_says_what_wrote_it(runs: Runs) -> None:
    record = find_job_checkpoints.verify_checkpoint_files(runs.checkpoint("z2", 2))
    assert (record.engine, record.stage, record.world_size) == ("deepspeed", 2, 2)
    assert record.consumed_sequences == 24
    assert record.optimizer.name == "adamw"
    assert [group.weight_decay for group in record.optimizer.groups] == [0.1, 0.0]
    assert all(group.params for group in record.optimizer.groups)


@pytest.mark.parametrize("stage", RESHARDED)
def test_resharded_checkpoints_resume_on_other_ranks(runs: Runs, moved: Runs, stage: int) -> None:
    wanted = pytest.approx(runs.losses(f"z{stage}")[2:], rel=TOLERANCE)
    assert moved.losses(f"z{stage}") == wanted
    record = find_job_checkpoints.verify_checkpoint_files(moved.checkpoint(f"z{stage}", 3))
    assert (record.world_size, record.step, record.consumed_sequences) == (3, 3, 36)


def test_training_goes_on_from_consolidated_weights(moved: Runs) -> None:
    assert moved.losses("z3-path") == pytest.approx(moved.losses("torch"), rel=TOLERANCE)


@pytest.mark.parametrize("name", ["z0", "z2", "z3", "z3-gpt2"])
def test_weights_alone_are_what_the_checkpoint_holds(runs: Runs, tmp_path: Path, name: str) -> None:
    alone = load_file(runs.directory / name / "weights" / "model.safetensors")
    held = load_file(weights(runs.checkpoint(name, 3), tmp_path / "model") / "model.safetensors")
    assert held.keys() - alone.keys() <= {"lm_head.weight"}
    assert all(numpy.array_equal(held[key], alone[key]) for key in alone)


def test_without_a_compiler_torchs_adam_serves(tmp_path: Path, text: Path) -> None:
    """Nothing was built before, and DeepSpeed's all-reduce on CPUs cannot be either."""
    tree = config(2, offload=("optimizer",))
    del tree["optimizer"]["params"]["torch_adam"]
    env = {"PATH": str(tmp_path), "TORCH_EXTENSIONS_DIR": str(tmp_path / "built")}
    attempt = run(tmp_path / "run", job(text, **of(2, tree, train={"steps": 1}, env=env, ranks=2)))
    assert "torch_adam is set to true in the optimizer's params" in attempt.log()
    assert not (tmp_path / "built").exists()


def test_what_deepspeed_does_not_take_is_the_jobs_fault(tmp_path: Path, text: Path) -> None:
    """Else the job would be started again, to end the same way."""
    bad = {"optimizer": of(1, config(1, optimizer={"type": "Nonesuch"}))}
    bad["zero.Init"] = of(3, {"zero_optimization": {"stage": 3, "stage3_max_live_parameters": -1}})
    (tmp_path / "out").mkdir()
    full = {name: job(text, ranks=2, **tree) for name, tree in bad.items()}
    (tmp_path / "out/runs.json").write_text(json.dumps(full))
    attempt = start(tmp_path, job(text, ranks=2, engine="deepspeed"), script=REFUSALS)
    assert attempt.finish() == [0, 0], attempt.log()
    told = json.loads(attempt.log().splitlines()[-1])
    start_of = "BadRequest: deepspeed.config: DeepSpeed rejects the configuration: "
    assert [each[: len(start_of)] for name in bad for each in told[name]] == [start_of] * 4
    assert "Nonesuch is not a supported DeepSpeed Optimizer" in told["optimizer"][0]


def test_a_stop_saves_and_other_ranks_are_refused(tmp_path: Path, text: Path) -> None:
    """Asked by a SIGTERM at one rank; another number of ranks is told what to type."""
    job_of = partial(job, text, **of(3, train={"steps": 100_000}))
    attempt = start(tmp_path / "first", job_of(ranks=2))
    attempt.mailbox.wait_for("step")
    attempt.processes[1].terminate()
    assert attempt.finish() == [EXIT_STOPPED] * 2, attempt.log()
    saved = find_job_checkpoints.newest_valid(tmp_path / "first" / "out")
    assert saved.record is not None
    assert f"stopped at step {saved.record.step} on request" in attempt.log()
    one = run(tmp_path / "one", job_of(ranks=1, resume_from=str(saved.path)), expect=EXIT_BAD_JOB)
    assert f"zerotools reshard {saved.path} {saved.path}-1-ranks --world-size 1" in one.log()


def test_deepspeed_trains_on_two_nodes_too(tmp_path: Path, text: Path) -> None:
    # SGD: of the others, DeepSpeed compiles its own for minutes.
    trained = steps(3, optimizer="sgd")
    wanted: dict[str, Any] = {"engine": "deepspeed", "zero": {"stage": 2}, "train": trained}
    both = Run(tmp_path / "two", text, ranks=1, **wanted)
    nodes = [both.start(0), both.start(1)]
    assert finished(nodes) == [[0], [0]], nodes[0].log()
    one = run(tmp_path / "one", job(text, ranks=2, **wanted))
    assert nodes[0].losses() == nodes[1].losses() == one.losses()
    assert (
        find_job_checkpoints.verify_checkpoint_files(
            tmp_path / "two" / "out" / "step-00000003"
        ).world_size
        == 2
    )
