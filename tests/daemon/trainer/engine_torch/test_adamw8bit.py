"""AdamW with moments of 8 bits: its bytes are bitsandbytes', at every stage and number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA
from tests.daemon.trainer.meshes import check_memory
from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools import formats
from zerotools.core.errors import Unsupported
from zerotools.ops.conversions import convert
from zerotools.runs import find_job_checkpoints

pytestmark = [pytest.mark.torch, pytest.mark.dear(40, "three numbers of ranks")]
STAGES_ON = {**({2: (1, 3)} if FULL else {}), 3: (3,), 1: (0,)}
RESUMED = {ranks: stages for ranks, stages in STAGES_ON.items() if FULL or ranks > 1}
STEPS = 4
ROUNDING = 2e-4
"""Of losses: gradients that differ by the order of a sum may make another byte."""
MODEL = {**TINY_LLAMA, "hidden_size": 72, "intermediate_size": 80, "num_hidden_layers": 1}
"""Of its matrices those of k and v are too small for bytes."""


def job_of(stage: int, **changes: Any) -> dict[str, Any]:
    train = {"steps": STEPS, "optimizer": "adamw8bit", "learning_rate": 1e-2}
    train |= changes.pop("train", {})
    return {"model": {"config": MODEL}, "train": train, "zero": {"stage": stage}, **changes}


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[int, Runs]:
    """On 3 ranks, in the full matrix also going on from 2, and on 1 that goes on from the 3."""
    root = tmp_path_factory.mktemp("by-ranks")
    found: dict[int, Runs] = {}
    further: dict[str, dict[str, Any]] = {}
    for ranks in STAGES_ON:
        jobs = dict(further)
        for stage in STAGES_ON[ranks]:
            source = root / str(ranks) / "out" / f"whole-{stage}" / "out"
            step = source / find_job_checkpoints.directory_name(2)
            jobs[f"whole-{stage}"] = job_of(stage)
            if stage in RESUMED.get(ranks, ()):
                jobs[f"whole-{stage}"]["checkpoint"] = {"every": 2}
                jobs[f"resumed-{stage}"] = job_of(stage, resume_from=str(step))
        if ranks == 1:
            jobs["adamw"] = job_of(stage, train={"optimizer": "adamw"})
        if ranks == 3:
            jobs["host"] = job_of(stage, offload={"optimizer": "cpu"})
        found[ranks] = run_all(root / str(ranks), text, ranks, jobs, ends=False, asked=("begins",))
        step = found[ranks].checkpoint(f"whole-{stage}", 2)
        further = {"moved": job_of(stage, resume_from=str(step))}
    return found


def test_each_rank_holds_what_was_predicted(by_ranks: dict[int, Runs]) -> None:
    for runs in by_ranks.values():
        for name in runs.report:
            check_memory(runs, name, near=0.0)


def test_losses_are_near_those_of_adamw(by_ranks: dict[int, Runs]) -> None:
    wanted = by_ranks[1].losses("adamw")
    ours = by_ranks[1].losses("whole-0")
    assert ours == pytest.approx(wanted, rel=1e-2)
    assert ours != wanted
    assert ours[-1] < ours[0] - 0.1


def test_losses_are_the_same_at_every_stage_and_number_of_ranks(by_ranks: dict[int, Runs]) -> None:
    wanted = pytest.approx(by_ranks[1].losses("whole-0"), rel=ROUNDING)
    for ranks, stages in STAGES_ON.items():
        for stage in stages:
            assert by_ranks[ranks].losses(f"whole-{stage}") == wanted, (ranks, stage)
    assert by_ranks[3].losses("host") == wanted


def test_a_run_resumes_bit_for_bit(by_ranks: dict[int, Runs]) -> None:
    for ranks, stages in RESUMED.items():
        for stage in stages:
            runs = by_ranks[ranks]
            assert runs.ended(f"resumed-{stage}") == runs.ended(f"whole-{stage}")


@pytest.mark.parametrize(
    ("source", "stage", "ranks"), [(2, 3, 3), (3, 3, 1)] if FULL else [(3, 3, 1)]
)
def test_the_state_arrives_whole_at_other_ranks(
    by_ranks: dict[int, Runs], source: int, stage: int, ranks: int
) -> None:
    before, after = by_ranks[source], by_ranks[ranks]
    begun = before.report[f"resumed-{stage}"]["begun"]
    assert after.report["moved"]["begun"] == begun
    wanted = pytest.approx(before.losses(f"whole-{stage}")[2:], rel=ROUNDING)
    assert after.losses("moved") == wanted


def test_the_tools_see_bytes_and_scales(by_ranks: dict[int, Runs]) -> None:
    checkpoint = formats.read(by_ranks[3].checkpoint("whole-3", 2))
    q = "model.layers.0.self_attn.q_proj.weight"
    found = {key.role: tensor for key, tensor in checkpoint.tensors.items() if key.name == q}
    assert set(found) == {
        *("param", "step", "exp_avg_8bit", "exp_avg_scale"),
        *("exp_avg_sq_8bit", "exp_avg_sq_scale"),
    }
    assert (found["exp_avg_8bit"].dtype.name, found["exp_avg_8bit"].shape) == ("uint8", (72, 72))
    assert found["exp_avg_scale"].shape == (72, 1)
    roles = {key.role for key in checkpoint.tensors if key.name == "model.norm.weight"}
    assert roles == {"param", "step", "exp_avg", "exp_avg_sq"}


def test_bytes_are_never_taken_for_moments_of_another_framework(by_ranks: dict[int, Runs]) -> None:
    source = by_ranks[3].checkpoint("whole-3", 2)
    output = by_ranks[3].directory / "elsewhere"
    with pytest.raises(
        Unsupported, match=r"exp_avg_8bit, .*DeepSpeed loads only groups with equal state"
    ):
        convert.prepare_convert(source, output, "universal", {})


@pytest.mark.parametrize("signed", [True, False])
def test_a_byte_is_the_nearest_number_of_the_table(signed: bool) -> None:
    import torch

    from zerotoolsd.trainer.engine_torch.adamw8bit import (
        dequantised,
        quantised,
        table_of,
    )

    table = table_of(signed, torch.device("cpu"))
    assert len(table) == len(set(table.tolist())) == 256
    assert {0.0, 1.0} < set(table.tolist())
    assert bool((table < 0).any()) is signed
    torch.manual_seed(1)
    values = torch.randn(7, 3, 100) * torch.logspace(-8, 2, 7)[:, None, None]
    values = values if signed else values.square()
    values[3] = 0
    codes, scales = quantised(values, signed)
    assert (codes.shape, scales.shape) == (values.shape, (7, 2))
    again = dequantised(codes, scales, signed)
    for row in range(7):
        flat, bytes_, made = (each[row].flatten() for each in (values, codes, again))
        for block in range(2):
            part = slice(256 * block, 256 * block + 256)
            relative = flat[part] / scales[row, block].clamp(min=1e-38)
            nearest = (relative[:, None] - table).abs().amin(dim=1)
            got = (relative - table[bytes_[part].int()]).abs()
            torch.testing.assert_close(got, nearest, rtol=0, atol=1e-6)
            assert bool(((made[part] - flat[part]).abs() <= 0.02 * scales[row, block]).all())
    cut_codes, cut_scales = quantised(values[2:5], signed)
    assert torch.equal(cut_codes, codes[2:5])
    assert torch.equal(cut_scales, scales[2:5])


@pytest.mark.full
def test_updates_are_those_of_bitsandbytes_and_no_byte_is_farther_off() -> None:
    """Its C++ for CPUs takes other bytes than the nearest for up to 5 % of small numbers, so that
    each step begins with its state."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    import torch
    from bitsandbytes import functional
    from bitsandbytes.optim import AdamW8bit as Theirs

    from zerotoolsd.trainer.allocate_tensors import make_memory
    from zerotoolsd.trainer.engine_torch import adamw8bit

    betas, moments = (0.9, 0.95), (("exp_avg", True), ("exp_avg_sq", False))
    for _, signed in moments:
        table = adamw8bit.table_of(signed, torch.device("cpu"))
        assert torch.equal(table, functional.create_dynamic_map(signed=signed))
    torch.manual_seed(2)
    start = torch.randn(16, 512)
    weights = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    theirs = Theirs([weights[0]], lr=1e-2, betas=betas, weight_decay=0.1)
    ours = adamw8bit.AdamW8bit(
        [{"params": [weights[1]], "weight_decay": 0.1}], lr=1e-2, betas=betas, eps=1e-8
    )
    state = adamw8bit.first_state(weights[1], make_memory(torch.device("cpu")).state)
    ours.state[weights[1]] = state
    for _ in range(5):
        gradient = torch.randn(16, 512)
        exact = {
            name: beta * adamw8bit.dequantised(state[f"{name}_8bit"], state[f"{name}_scale"], sign)
            + (1 - beta) * gradient ** (1 if sign else 2)
            for (name, sign), beta in zip(moments, betas, strict=True)
        }
        for weight, optimizer in zip(weights, (theirs, ours), strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
        torch.testing.assert_close(weights[1], weights[0], rtol=1e-5, atol=1e-6)
        weights[1].data.copy_(weights[0].data)
        for number, (name, signed) in enumerate(moments, 1):
            codes, scales = state[f"{name}_8bit"], state[f"{name}_scale"]
            found = theirs.state[weights[0]]
            their_codes, their_scales = found[f"state{number}"], found[f"absmax{number}"]
            torch.testing.assert_close(scales.flatten(), their_scales, rtol=1e-6, atol=0)
            assert float((codes != their_codes).float().mean()) < 0.1
            off, their_off = (
                (adamw8bit.dequantised(each, scales, signed) - exact[name]).abs()
                for each in (codes, their_codes)
            )
            assert bool((off <= their_off + 1e-6 * scales.max()).all())
            codes.copy_(their_codes)
            scales.copy_(their_scales.view(scales.shape))
