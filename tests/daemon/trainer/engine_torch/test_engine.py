"""Micro batches add up to the step that one batch takes, however their gradients are summed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA
from tests.daemon.trainer.meshes import check_memory
from tests.daemon.trainer.model.test_sharding import loss_of, sharded, storages
from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools.runs import find_job_checkpoints

pytestmark = [pytest.mark.torch, pytest.mark.dear(30, "every stage and place, accumulated")]
SUMMATION = 2e-6
ROUNDING = 1e-3
"""Of gradients in 16 bits: those of parts of a batch are rounded part by part."""
WAYS = ("sharded", "local")
MODEL = {"config": {**TINY_LLAMA, "vocab_size": 287, "tie_word_embeddings": True}}
"""31 rows of the embedding do not divide by two."""
if not FULL:  # gradients of each block go the same way
    MODEL["config"]["num_hidden_layers"] = 1
Layout = tuple[int, str, int | None]
"""Stage, what is offloaded, ranks that share a copy."""
LAYOUTS: tuple[Layout, ...] = (
    (0, "none", None),
    (1, "none", None),
    (3, "none", None),
    (3, "cpu", None),
    (2, "none", 1),
    (3, "cpu", 1),
)
"""One of each way that gradients go: reduced into what is kept, whole or in parts, by FSDP or over
groups; and by masters, on the device (stage 1 in 16 bits) or the host. All others combine these."""
IN_FP32 = (LAYOUTS[0], LAYOUTS[2], LAYOUTS[4])
"""Without masters, in fp32; the others in 16 bits."""
AT_ONCE = {
    "fp32": ("fp32-0-none-None",),
    "bf16": ("bf16-1-none-None", "bf16-3-cpu-None"),
}
"""Of the layouts of a precision, those that also take the batch at once: the first is what the
others are compared with, unless the full matrix has each compared with itself."""
OTHERS: tuple[Layout, ...] = (
    *((stage, place, None) for stage in range(4) for place in ("none", "cpu", "disk")),
    (3, "params", None),
    (3, "params", 1),
)
MASTERS = [(1, "none", "device"), (3, "cpu", "host"), *([(2, "cpu", "host")] if FULL else [])]
"""Stages and places of masters, and where gradients are summed then."""
AGAIN = ("bf16-3-cpu-None-sharded", *(("fp32-2-none-1-sharded",) if FULL else ()))


def accumulated(
    layout: Layout, precision: str, way: str | None, directory: Path, **changes: Any
) -> dict[str, Any]:
    """Two steps of three micro batches; without a way, of one."""
    stage, place, size = layout
    offload = {"params": "cpu"} if place == "params" else {"optimizer": place}
    if place == "disk":
        offload["path"] = str(directory / "spill")
    train: dict[str, Any] = {"steps": 2, "max_grad_norm": 0.1, "precision": precision}
    if way is not None:
        train |= {"micro_batch_size": 2, "accumulate": way}
    zero = {"stage": stage} if size is None else {"stage": stage, "shard_size": size}
    return {"model": MODEL, "train": train, "zero": zero, "offload": offload, **changes}


def layouts() -> Iterator[tuple[str, Layout, str]]:
    """The name, layout and precision of what is compared."""
    halves = [layout for layout in LAYOUTS if layout not in IN_FP32]
    for precision, short in (("fp32", IN_FP32), ("bf16", halves)):
        for layout in dict.fromkeys((*LAYOUTS, *OTHERS)) if FULL else short:
            stage, place, size = layout
            yield f"{precision}-{stage}-{place}-{size}", layout, precision


def at_once(name: str, precision: str) -> str:
    """The layout whose steps in one batch are those that this one's come to."""
    return name if FULL or name in AT_ONCE[precision] else AT_ONCE[precision][0]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    directory = tmp_path_factory.mktemp("accumulation") / "2"
    jobs = {}
    for name, layout, precision in layouts():
        for way in (*WAYS, None) if name == at_once(name, precision) else WAYS:
            jobs[f"{name}-{way}"] = accumulated(layout, precision, way, directory)
    for name in AGAIN:
        source = directory / "out" / name / "out" / find_job_checkpoints.directory_name(1)
        jobs[name] = {**jobs[name], "checkpoint": {"every": 1}}
        jobs[f"resumed-{name}"] = {**jobs[name], "resume_from": str(source)}
    halves = {"steps": 1, "precision": "bf16", "micro_batch_size": 3, "accumulate": "sharded"}
    jobs["gathered"] = {"model": MODEL, "train": halves, "zero": {"stage": 3}}
    return run_all(directory, text, 2, jobs, ends=False)


@pytest.mark.parametrize("way", WAYS)
def test_losses_and_norms_are_those_of_steps_in_one_batch(runs: Runs, way: str) -> None:
    for name, _, precision in layouts():
        near = SUMMATION if precision == "fp32" else ROUNDING
        one = f"{at_once(name, precision)}-None"
        wanted = pytest.approx(runs.losses(one), rel=near)
        assert runs.losses(f"{name}-{way}") == wanted, name
        norms = [runs.of(each, "grad_norm")[0] for each in (f"{name}-{way}", one)]
        assert norms[0] == pytest.approx(norms[1], rel=2 * near), name


def test_gradients_are_summed_where_the_optimizer_is(runs: Runs) -> None:
    """In fp32: 4 bytes of each of the rows that a rank updates, where 16-bit ones take 2."""
    for stage, place, where in MASTERS:
        one, local, sharded = (
            runs.report[f"bf16-{stage}-{place}-None-{way}"]["end"]["live"]
            for way in (None, *reversed(WAYS))
        )
        for rank in range(2):
            held = [found[rank][f"{where} gradients"] for found in (one, local, sharded)]
            assert held == [held[0], held[0], 2 * held[0]]


def test_each_rank_holds_what_was_predicted_to_the_byte(runs: Runs) -> None:
    """Also of the rank that has fewer rows."""
    for name in runs.report:
        check_memory(runs, name, near=0.0)


@pytest.mark.parametrize("name", AGAIN)
def test_a_resumed_run_ends_bit_for_bit_where_an_uninterrupted_one_does(
    runs: Runs, name: str
) -> None:
    assert runs.losses(f"resumed-{name}") == runs.losses(name)[1:]
    assert runs.ended(f"resumed-{name}") == runs.ended(name)


def test_masters_add_up_alike_wherever_they_are(runs: Runs) -> None:
    names = [f"bf16-{stage}-{place}-None" for stage, place, _ in MASTERS]
    assert len({runs.ended(f"{name}-sharded") for name in names}) == 1


@pytest.mark.parametrize("place", ["none", "cpu"])
@pytest.mark.parametrize("way", WAYS)
def test_between_micro_batches_whole_gradients_are_there_if_they_are_summed(
    way: str, place: str, threadless: None
) -> None:
    from zerotoolsd.trainer.engine_torch.engine import before_micro_batch
    from zerotoolsd.trainer.engine_torch.master_weights import MasterWeights

    model, memory, layout = sharded(
        stage=1, precision="bf16", offload_optimizer=place, accumulate=way
    )
    masters = MasterWeights(dict(model.named_parameters()), memory, layout)
    before = storages()
    before_micro_batch(model, layout, is_last=False)
    loss_of(model).backward()
    made = sum(size for address, size in storages().items() if address not in before)
    whole = sum(4 * weight.numel() for weight in masters.weights.values())
    # Beside them there are the norms, a number each.
    assert made == pytest.approx(whole if way == "local" else 0, abs=whole / 100)
