"""A job on a simulated GPU: each tensor is where it must be, and no copy is read too early.

A rank trains, saves and resumes on `simulated_gpu` and on the CPU. Losses, norms and checkpoints
are equal bit for bit, and a step waits for the GPU as often as its case says.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.launching import TINY_LLAMA, job
from tests.daemon.trainer.conftest import end_group
from tests.daemon.trainer.torch_releases import since_torch
from tests.matrices import FULL

pytestmark = [
    pytest.mark.torch,
    since_torch("2.13", "DTensor asks the driver for the device of its part"),
]
STEPS = 2
"""Of each of two runs, of which the second resumes."""
HOST, DISK = {"optimizer": "cpu"}, {"optimizer": "disk"}
BOTH = {"optimizer": "cpu", "params": "cpu"}
PIECES = {"micro_batch_size": 4}
PARAMETERS, MATRICES = 21, 14
"""Of the tiny Llama; of the matrices that Muon updates."""
ONCE = {"tolist": 1}
COPIED = "aten._to_copy.default"
ROUTED = {
    **TINY_LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "head_dim": 8,
    "output_router_logits": True,
}

GOLDEN = Path(__file__).parents[2] / "golden" / "trl-1.16.0" / "dpo"
PAIRS = {
    "model": {"path": str(GOLDEN / "model"), "attention": "eager"},
    "data": {"text": [], "preferences": [str(GOLDEN / "preferences.jsonl")]},
}


class Case(NamedTuple):
    """A job, by what it changes, and what lets the host wait in a step."""

    train: Mapping[str, Any]
    stage: int = 2
    offload: Mapping[str, str] = {}
    more: Mapping[str, Any] = {}
    waits: Mapping[str, int] = ONCE


CASES = {
    "gradients on the host, loss in parts": Case({"chunked_loss": "on", **PIECES}, 2, HOST),
    "state on disk": Case({"precision": "bf16"}, 1, DISK),
    "a concurrent save": Case(
        {"precision": "bf16", **PIECES}, 0, more={"checkpoint": {"asynchronous": True}}
    ),
    # FSDP2 adds the gradients of later micro batches on the host, and waits for each.
    "parameters on the host": Case(
        {"precision": "bf16", **PIECES}, 3, BOTH, waits={COPIED: 2 * PARAMETERS, **ONCE}
    ),
}
"""One for each cause; those of `ALL` are more places, precisions and optimizers."""
EVERY = {
    f"stage {stage}, {precision}, {next(iter(offload.values()), 'all on the GPU')}": Case(
        {"precision": precision, **(PIECES if stage % 2 else {})}, stage, offload
    )
    for precision in ("fp32", "bf16")
    for stage in range(4)
    for offload in ({}, HOST, DISK)
}
OPTIMIZERS = {
    "adamw8bit": Case({"optimizer": "adamw8bit"}, 3),
    "adamw8bit on the host": Case({"optimizer": "adamw8bit"}, 2, HOST),
    # Its rate is that of the weights' own size, and that of the update.
    "adafactor": Case({"optimizer": "adafactor"}, 3, waits={"tolist": 2}),
    "adafactor on disk": Case({"optimizer": "adafactor", "precision": "bf16"}, 2, DISK),
    "muon": Case({"optimizer": "muon"}, 1),
    # Its iterations are on the GPU, and the host adds their result.
    "muon on the host": Case({"optimizer": "muon"}, 2, HOST, waits={COPIED: MATRICES, **ONCE}),
    "sgd": Case({"optimizer": "sgd"}, 0),
}
MODELS = {
    "experts": Case({}, 2, HOST, {"model": {"config": ROUTED, "attention": "eager"}}),
    "loss in parts of 16 bits": Case({"precision": "bf16", "chunked_loss": "on"}, 3),
    "evaluation": Case({}, 2, HOST, {"eval": {"every": 1, "fraction": 0.05}}),
    "preferences": Case({"learning_rate": 1e-4}, 2, HOST, PAIRS),
    "activations again": Case({"activation_checkpointing": True}, 3, HOST),
}
ALL = {**CASES, **(EVERY | OPTIMIZERS | MODELS if FULL else {})}


class Run(NamedTuple):
    """The losses and norms of a run, and what let the host wait in its last step."""

    curve: list[tuple[float, float]]
    waits: dict[str, int]


def trained(
    run_dir: Path, tree: Mapping[str, Any], group: Callable[[Any], Any], waits: Counter[str]
) -> Run:
    """Train a job in this process, until its last step or, with several ranks, before its save."""
    from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict
    from zerotoolsd.trainer.prepare_and_train import prepare_training
    from zerotoolsd.trainer.rank.notify_supervisor import Notifier
    from zerotoolsd.trainer.rank.rank_settings import read_spec
    from zerotoolsd.trainer.reporting.reporter import Phases, Reporter

    class Enough(Exception):
        pass

    class Noted(Reporter):
        def stepped(self, step: int, outcome: Any, tokens: int, seconds: float) -> None:
            nonlocal counted
            super().stepped(step, outcome, tokens, seconds)
            curve.append((outcome.loss, outcome.grad_norm))
            counted = dict(waits)
            waits.clear()
            if step == self._steps and ours.rank.world_size > 1:
                raise Enough

    curve, counted = list[tuple[float, float]](), dict[str, int]()
    run_dir.mkdir(parents=True, exist_ok=True)
    spec = job_from_dict({**tree, "output_dir": str(run_dir / "out")}, source="job")
    (run_dir / "spec.json").write_text(json.dumps(job_to_dict(spec)))
    spec = read_spec(run_dir)
    ours = group(spec)
    reporter = Noted(ours.rank, Notifier(None, 0), steps=spec.train.steps)
    ready = prepare_training(spec, run_dir, ours, reporter, Phases(time.monotonic()))
    with suppress(Enough):
        assert ready.train() == 0
    return Run(curve, counted)


def tree_of(text: Path, device: str, ranks: int, case: Case, spill: Path, steps: int) -> Any:
    tree = job(
        text,
        model={"config": TINY_LLAMA, "attention": "eager"},
        zero={"stage": case.stage},
        train={**case.train, "steps": steps},
    )
    for key, value in case.more.items():
        tree[key] = {**({} if key == "model" else tree.get(key, {})), **value}
    if not tree["data"]["text"]:
        del tree["data"]["sequence_length"]  # which is for text
    if case.offload:
        place = {"path": str(spill)} if case.offload == DISK else {}
        tree["offload"] = {**case.offload, **place}
    del tree["ranks"]
    return tree | ({"device": "cuda", "gpus": ranks} if device == "cuda" else {"ranks": ranks})


def rank_alone(device: str, spec: Any) -> Any:
    import torch
    import torch.distributed as dist

    from zerotoolsd.trainer.rank.process_group import WorldGroup
    from zerotoolsd.trainer.rank.rank_settings import Rank

    place = torch.device(device, *([0] if device == "cuda" else []))
    return WorldGroup(Rank(0, 0, 1).in_job(spec), place, dist.group.WORLD)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.dear(30, "four runs, of which two are on the simulated GPU")
def test_a_job_is_the_same_as_on_the_cpu(
    name: str, tmp_path: Path, text: Path, alone: None
) -> None:
    from tests.daemon.trainer.simulated_gpu import simulated_gpu
    from tests.daemon.trainer.tensors import digest

    case, runs, saved = ALL[name], dict[str, list[Run]](), dict[str, str]()
    for device in ("cpu", "cuda"):
        place = tmp_path / device

        def run(steps: int, waits: Counter[str], device: str = device, place: Path = place) -> Run:
            tree = tree_of(text, device, 1, case, place / "spill", steps)
            return trained(place, tree, partial(rank_alone, device), waits)

        if device == "cpu":
            runs[device] = [run(count * STEPS, Counter()) for count in (1, 2)]
        else:
            with simulated_gpu() as waits:
                runs[device] = [run(count * STEPS, waits) for count in (1, 2)]
        saved[device] = digest(place / "out" / f"step-{2 * STEPS:08}")
    assert [each.curve for each in runs["cuda"]] == [each.curve for each in runs["cpu"]]
    assert saved["cuda"] == saved["cpu"]
    if "eval" not in case.more:  # whose losses are read, too
        assert [each.waits for each in runs["cuda"]] == [case.waits] * 2


SHARED = {
    "rows of masters": Case({"precision": "bf16", "optimizer": "muon"}, 1, HOST),
    "shards on the host": Case({"precision": "bf16", **PIECES}, 3, BOTH),
}
"""Of eight ranks; those of `ALL_SHARED` are more optimizers and ways to share."""
MORE_SHARED = {
    "stage 0": Case({"precision": "bf16"}, 0),
    "rows": Case({"optimizer": "muon"}, 1),
    "norms of the host": Case({"optimizer": "adafactor"}, 2, HOST),
    "rows on disk": Case({"optimizer": "adafactor", "precision": "bf16"}, 1, DISK),
    "eight bits": Case({"optimizer": "adamw8bit"}, 3, HOST),
    "groups": Case({"precision": "bf16"}, 2, HOST, {"zero": {"shard_size": 4}}),
    "tensor ranks": Case({"precision": "bf16"}, 3, more={"zero": {"tensor_ranks": 2}}),
    "sequence ranks": Case({"precision": "bf16"}, 2, more={"zero": {"sequence_ranks": 2}}),
    "experts of ranks": Case({}, 3, HOST, {"model": {"config": ROUTED, "attention": "eager"}}),
}
ALL_SHARED = {**SHARED, **(MORE_SHARED if FULL else {})}
RANKS = 8


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Any], Any]]:
    """The group of rank 0 of eight, of which no other is there: it gets its own values."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from harness.gpu.fake_rank import FakeGroup
    from zerotoolsd.trainer.rank.rank_settings import Rank

    def group(device: str, spec: Any) -> Any:
        place = torch.device(device, *([0] if device == "cuda" else []))
        return FakeGroup(Rank(0, 0, RANKS).in_job(spec), place, dist.group.WORLD)

    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield group
    end_group()


@pytest.mark.parametrize("name", ALL_SHARED)
@pytest.mark.dear(30, "a run on the CPU and one on the simulated GPU")
def test_a_rank_of_eight_has_its_part_on_the_gpu(
    name: str, tmp_path: Path, text: Path, eight: Callable[[str, Any], Any]
) -> None:
    from tests.daemon.trainer.simulated_gpu import simulated_gpu

    case = ALL_SHARED[name]
    case = case._replace(train={**case.train, "batch_size": 8 * RANKS})
    runs = dict[str, Run]()
    for device in ("cpu", "cuda"):
        place = tmp_path / device
        tree = tree_of(text, device, RANKS, case, place / "spill", STEPS)
        with simulated_gpu() if device == "cuda" else nullcontext(Counter[str]()) as waits:
            runs[device] = trained(place, tree, partial(eight, device), waits)
    # The norms are not those of a job: the group does not divide a sum for an average.
    losses = [[loss for loss, _ in runs[device].curve] for device in ("cuda", "cpu")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
