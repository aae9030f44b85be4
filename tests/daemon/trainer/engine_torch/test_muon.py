"""Muon and Adam: their numbers are those of torch's, at every stage and number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.launching import TINY_LLAMA
from tests.daemon.trainer.meshes import check_memory
from tests.daemon.trainer.several import Runs, run_all
from tests.daemon.trainer.torch_releases import since_torch
from tests.matrices import FULL
from zerotools import formats
from zerotools.runs import find_job_checkpoints

if TYPE_CHECKING:
    import torch

pytestmark = [pytest.mark.torch, pytest.mark.dear(30, "three numbers of ranks")]
since_muon = since_torch("2.9", "it has no Muon to compare with")
STAGES = (0, 1, 2, 3)
STAGES_ON = {
    **({2: STAGES} if FULL else {}),
    3: STAGES if FULL else (3,),
    **({1: STAGES} if FULL else {}),
}
RESUMED = MOVED_FROM = STAGES_ON
"""Muon's, by the number of ranks; at stage 2 others go on. What 3 ranks have that 2 have not are
rows that do not divide, of adapters ranks without rows and, at the end, fewer matrices than
ranks; so 2 are of the full matrix. That the state of a run moves on is in `test_stages`."""
STEPS = 4
RATE, OF_MUON = 1e-2, 2e-2
ROUNDING = {"muon": 1e-4, "adam": 2e-6}
"""Of losses. Muon's iterations are in bf16, which rounds what differs by the order of a sum."""
MODEL = {**TINY_LLAMA, "hidden_size": 40, "intermediate_size": 50, "num_hidden_layers": 1}


def muon_job(model: Path, stage: int, **changes: Any) -> dict[str, Any]:
    train = {"steps": STEPS, "optimizer": "muon", "learning_rate": RATE, "schedule": "linear"}
    own = {"muon_learning_rate": OF_MUON, **changes.pop("train", {})}
    zero = {"stage": stage}
    return {"model": {"path": str(model)}, "train": {**train, **own}, "zero": zero, **changes}


def jobs_on(runs: Path, model: Path, ranks: int) -> dict[str, dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = {}
    for stage in STAGES_ON[ranks]:
        source = runs / f"muon-{stage}" / "out" / find_job_checkpoints.directory_name(2)
        jobs[f"muon-{stage}"] = muon_job(model, stage)
        if stage in RESUMED[ranks]:
            jobs[f"muon-{stage}"]["checkpoint"] = {"every": 2}
            jobs[f"resumed-{stage}"] = muon_job(model, stage, resume_from=str(source))
    adam = {"optimizer": "adam", "muon_learning_rate": None}
    last = STAGES_ON[ranks][-1]
    if FULL or ranks == 3:
        jobs["adam"] = muon_job(model, last, train=adam)
        jobs["host"] = muon_job(model, last, offload={"optimizer": "cpu"})
    if FULL:
        lora = {"rank": 2, "target_modules": ["q_proj", "down_proj"]}
        jobs["adapters"] = muon_job(model, last, lora=lora)
    return jobs


def moved(source: Runs, model: Path, ranks: int) -> dict[str, dict[str, Any]]:
    """Runs that go on from Muon's second step on `ranks` ranks, each at another stage."""
    return {
        f"moved-{stage}": muon_job(
            model, STAGES[stage - 1], resume_from=str(source.checkpoint(f"muon-{stage}", 2))
        )
        for stage in MOVED_FROM.get(ranks, ())
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("muon") / "model"
    LlamaForCausalLM(LlamaConfig(**MODEL)).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory: pytest.TempPathFactory, text: Path, model: Path) -> dict[int, Runs]:
    """On 3 ranks, in the full matrix also going on from 2, and on 1 that goes on from the 3."""
    root = tmp_path_factory.mktemp("by-ranks")
    found: dict[int, Runs] = {}
    further: dict[str, dict[str, Any]] = {}
    for ranks in STAGES_ON:
        directory = root / str(ranks)
        jobs = jobs_on(directory / "out", model, ranks) | further
        found[ranks] = run_all(directory, text, ranks, jobs, ends=False, asked=("begins",))
        further = moved(found[ranks], model, ranks)
    return found


def test_each_rank_holds_what_was_predicted(by_ranks: dict[int, Runs]) -> None:
    for runs in by_ranks.values():
        for name in runs.report:
            check_memory(runs, name, near=0.0)


def plain_losses(kind: str, model_path: Path, text: Path) -> Iterator[float]:
    """The losses of a loop of torch's own."""
    import torch
    from transformers import LlamaForCausalLM

    from zerotoolsd.trainer.data.batches import Batches
    from zerotoolsd.trainer.data.example_pools import TokenWindows
    from zerotoolsd.trainer.data.token_stream import ByteTokens

    torch.manual_seed(0)
    model = LlamaForCausalLM.from_pretrained(model_path).train()
    optimizers = by_torch(kind, dict(model.named_parameters()))
    stream = ByteTokens([text], [text.stat().st_size])
    batches = Batches(TokenWindows(stream, 32), seed=7)
    for step in range(STEPS):
        examples = batches.examples(12 * step, 12)
        inputs = torch.tensor([[int(i) for i in each.inputs] for each in examples])
        labels = torch.tensor([[int(i) for i in each.targets] for each in examples])
        logits = model(input_ids=inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * (STEPS - step) / STEPS
            optimizer.step()
            optimizer.zero_grad()
        yield float(loss.detach())


def by_torch(
    kind: str, weights: dict[str, torch.nn.Parameter]
) -> list[tuple[torch.optim.Optimizer, float]]:
    import torch

    tables = ("model.embed_tokens.weight", "lm_head.weight")
    matrices = [p for name, p in weights.items() if p.dim() == 2 and name not in tables]
    norms = [p for p in weights.values() if p.dim() == 1]
    others = [weights[name] for name in tables] + ([] if kind == "muon" else matrices)
    groups = [{"params": others, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    adam = torch.optim.AdamW if kind == "muon" else torch.optim.Adam
    found = [(adam(groups, betas=(0.9, 0.95)), RATE)]
    if kind == "muon":
        muon = torch.optim.Muon(matrices, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        found.append((muon, OF_MUON))
    return found


@pytest.mark.parametrize("kind", ["adam", pytest.param("muon", marks=since_muon)])
def test_losses_are_those_of_a_plain_loop(
    by_ranks: dict[int, Runs], model: Path, text: Path, kind: str
) -> None:
    wanted = list(plain_losses(kind, model, text))
    assert wanted[-1] < wanted[0] - 0.1
    for ranks, runs in by_ranks.items():
        names = ["adam"] if kind == "adam" else [f"muon-{stage}" for stage in STAGES_ON[ranks]]
        for name in runs.report.keys() & {*names, *(["host"] if kind == "muon" else [])}:
            assert runs.losses(name) == pytest.approx(wanted, rel=ROUNDING[kind]), (ranks, name)


@pytest.mark.full
@pytest.mark.peft
@pytest.mark.parametrize("ranks", [2, 3])
def test_matrices_of_fewer_rows_than_ranks_are_updated(
    by_ranks: dict[int, Runs], ranks: int
) -> None:
    wanted = pytest.approx(by_ranks[1].losses("adapters"), rel=ROUNDING["muon"])
    assert by_ranks[ranks].losses("adapters") == wanted


@pytest.mark.parametrize("ranks", [1, 2, 3] if FULL else [3])
def test_muon_resumes_bit_for_bit_on_as_many_ranks(by_ranks: dict[int, Runs], ranks: int) -> None:
    runs = by_ranks[ranks]
    for stage in RESUMED[ranks]:
        assert runs.ended(f"resumed-{stage}") == runs.ended(f"muon-{stage}")
    if "host" in runs.report:
        assert runs.ended("host") == runs.ended(f"muon-{STAGES_ON[ranks][-1]}")


@pytest.mark.full
@pytest.mark.parametrize(("source", "ranks"), [(2, 3), (3, 1)])
def test_muon_arrives_whole_at_another_stage_and_number_of_ranks(
    by_ranks: dict[int, Runs], source: int, ranks: int
) -> None:
    before, after = by_ranks[source], by_ranks[ranks]
    for stage in MOVED_FROM[source]:
        begun = before.report[f"resumed-{stage}"]["begun"]
        assert after.report[f"moved-{stage}"]["begun"] == begun
        wanted = pytest.approx(before.losses(f"muon-{stage}")[2:], rel=ROUNDING["muon"])
        assert after.losses(f"moved-{stage}") == wanted


def test_the_tools_know_both_halves(by_ranks: dict[int, Runs]) -> None:
    path = by_ranks[3].checkpoint("muon-3", 2)
    checkpoint = formats.read(path)
    roles: dict[str, set[str]] = {}
    for key in checkpoint.tensors:
        roles.setdefault(key.role, set()).add(key.name)
    assert roles["momentum_buffer"] == {
        f"model.layers.0.{name}.weight"
        for name in (
            *(f"self_attn.{each}_proj" for each in "qkvo"),
            *(f"mlp.{each}_proj" for each in ("gate", "up", "down")),
        )
    }
    assert roles["exp_avg"] == roles["param"] - roles["momentum_buffer"] == roles["step"]
    state = formats.training_of(checkpoint)
    assert state.optimizer == "Muon"
    assert [sorted(group.options) for group in state.groups] == [
        ["lr", "momentum", "weight_decay"],
        ["betas", "eps", "lr", "weight_decay"],
        ["betas", "eps", "lr", "weight_decay"],
    ]
    assert state.groups[0].options["momentum"] == 0.95


def test_a_rank_holds_what_is_predicted(by_ranks: dict[int, Runs]) -> None:
    from zerotools.core.training_memory_layout import DEVICE, MOMENTS, MemoryLayout
    from zerotools.ops.estimate.model_families import architecture_of
    from zerotools.ops.estimate.state_memory import torch_engine_state

    shape = architecture_of(MODEL, "here")
    assert shape is not None
    for ranks, runs in by_ranks.items():
        for stage in STAGES_ON[ranks]:
            layout = MemoryLayout(stage, ranks, "fp32", optimizer="muon")
            wanted = torch_engine_state(shape.parameters(), layout)[DEVICE, MOMENTS]
            held = max(
                live["device moments"] for live in runs.report[f"muon-{stage}"]["start"]["live"]
            )
            assert held == wanted


@since_muon
@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
def test_steps_are_those_of_torch(scale: str) -> None:
    import torch

    from zerotools.jobs.jobfile_tables.train import TrainSpec
    from zerotoolsd.trainer.allocate_tensors import make_memory
    from zerotoolsd.trainer.engine_torch.optimizer import make_optimizer
    from zerotoolsd.trainer.engine_torch.reduce_and_update import InPlaceUpdate

    numbers = torch.Generator().manual_seed(3)
    shapes = ((5, 3), (3, 8), (4, 4), (7,))
    mine = {str(each): torch.nn.Parameter(torch.randn(each, generator=numbers)) for each in shapes}
    peers = {name: torch.nn.Parameter(p.detach().clone()) for name, p in mine.items()}
    device = torch.device("cpu")
    train = TrainSpec(steps=9, batch_size=1, optimizer="muon", learning_rate=0.5, muon_scale=scale)
    matrices = frozenset(name for name, p in mine.items() if p.dim() == 2)
    optimizer = make_optimizer(
        InPlaceUpdate(mine, device), train, make_memory(device).device, matrices, matrices
    )
    wanted = torch.optim.Muon([peers[name] for name in matrices], adjust_lr_fn=scale)
    other = torch.optim.AdamW([peers["(7,)"]], betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for rate in (0.5, 0.1, 0.02):
        for name in mine:
            gradient = torch.randn(mine[name].shape, generator=numbers)
            mine[name].grad, peers[name].grad = gradient.clone(), gradient
        for peer in (wanted, other):
            peer.param_groups[0]["lr"] = rate
            peer.step()
        optimizer.step(rate, norm=1.0, max_norm=0.0)
    assert {name: p.tolist() for name, p in mine.items()} == {
        name: p.tolist() for name, p in peers.items()
    }


@pytest.mark.parametrize(("capability", "name"), [((7, 5), "float32"), ((8, 0), "bfloat16")])
def test_gpus_without_bf16_iterate_in_fp32(capability: tuple[int, int], name: str) -> None:
    import torch

    from zerotoolsd.trainer.engine_torch.muon import computing_type, orthogonalised

    found = computing_type(torch.device("cuda", 0), lambda device: capability)
    assert found == getattr(torch, name)
    assert computing_type(torch.device("cpu")) == torch.bfloat16
    matrix = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).to(found)
    values = torch.linalg.svdvals(orthogonalised(matrix).float())
    assert 0.6 < float(values.min()) <= float(values.max()) < 1.3
