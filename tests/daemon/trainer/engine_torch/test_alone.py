"""A rank that is alone computes without FSDP2: the same values, saved as the same tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness.launching import TINY_LLAMA
from tests.daemon.trainer.torch_releases import since_torch
from zerotools.core.training_memory_layout import MemoryLayout

pytestmark = pytest.mark.torch
WAITS = {"tolist", "item", "cpu", "numpy", "__float__", "__int__", "__bool__", "nonzero"}
"""Methods of tensors for which the host waits until the device has the value."""


class Wrapped(MemoryLayout):
    """The layout of a rank that FSDP2 wraps, though it is alone."""

    is_sharded = True

    @property
    def has_masters(self) -> bool:
        return self.stage == 1 and self.precision != "fp32"


ROUTED = {
    **{key: value for key, value in TINY_LLAMA.items() if key != "model_type"},
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "head_dim": 8,
    "output_router_logits": True,
}


def made(layout: MemoryLayout, optimizer: str = "adamw", *, routed: bool = False) -> Any:
    """A tiny model that is ready to train, and what trains it."""
    import torch
    from transformers import LlamaConfig, Qwen3MoeConfig

    from zerotools.jobs.jobfile_tables.train import TrainSpec
    from zerotoolsd.trainer.allocate_tensors import make_memory
    from zerotoolsd.trainer.engine import router_balance
    from zerotoolsd.trainer.engine.conditional_layers import SeparateExperts
    from zerotoolsd.trainer.engine_torch.master_weights import MasterWeights
    from zerotoolsd.trainer.engine_torch.optimizer import make_optimizer
    from zerotoolsd.trainer.engine_torch.reduce_and_update import InPlaceUpdate
    from zerotoolsd.trainer.engine_torch.training_tensors import LiveState
    from zerotoolsd.trainer.model.initialise_from_seed import initialise_weights
    from zerotoolsd.trainer.model.meta_model import make_meta_model
    from zerotoolsd.trainer.model.optimizer_groups import muon_names
    from zerotoolsd.trainer.model.sharding import make_mesh, shard_model

    config = {key: value for key, value in TINY_LLAMA.items() if key != "model_type"}
    drawn = Qwen3MoeConfig(**ROUTED) if routed else LlamaConfig(**config, tie_word_embeddings=True)
    meta_model = make_meta_model(drawn)
    train = TrainSpec(steps=4, batch_size=2, precision=layout.precision, optimizer=optimizer)
    memory = make_memory(torch.device("cpu"), layout.state_tier)
    model = shard_model(meta_model, layout, memory).train()
    parameters = dict(model.named_parameters())
    masters = MasterWeights(parameters, memory, layout) if layout.has_masters else None
    path = masters or InPlaceUpdate(parameters, torch.device("cpu"))
    matrices = muon_names(meta_model.model)
    adam = make_optimizer(path, train, memory.state, frozenset(parameters), matrices)
    mesh = None if layout.is_sharded else make_mesh(torch.device("cpu"), layout)
    live = LiveState(model, layout, adam, memory, SeparateExperts(model), masters, mesh)
    buffers = dict(model.named_buffers())
    initialise_weights(dict(live.parameters), buffers, meta_model, 7, memory.host, set())
    live.copy_to_model()
    if routed:
        setattr(model, router_balance._LOSS_ATTRIBUTE, router_balance.RouterLoss(0.01, 2))
    return live, train


def step(
    live: Any, train: Any, number: int, micro: int | None = None, *, pairs: bool = False
) -> Any:
    """One step of two sequences, or of two pairs of answers."""
    from dataclasses import replace

    import torch

    from zerotoolsd.trainer.data.example_pools import Example, RankBatch
    from zerotoolsd.trainer.data.example_store import Preference
    from zerotoolsd.trainer.engine.nan_and_loss_scale import DivergencePolicy
    from zerotoolsd.trainer.engine_torch.engine import Scaling, train_step
    from zerotoolsd.trainer.rank.process_group import WorldGroup
    from zerotoolsd.trainer.rank.rank_settings import Rank

    rows = [[(3 * at + 5 * row + number) % 251 for at in range(17)] for row in range(2)]
    examples = [Example(row[:-1], row[1:]) for row in rows]
    if pairs:
        chosen, rejected = examples
        examples = [
            Preference(chosen.inputs, chosen.targets, (), rejected, (-80.0, -81.0)),
            Preference(rejected.inputs, rejected.targets, (), chosen, (-79.0, -82.0)),
        ]
    group = WorldGroup(Rank(0, 0, 1), torch.device("cpu"), control=None)
    return train_step(
        live,
        RankBatch(examples, 32, 32),
        number,
        replace(train, micro_batch_size=micro),
        group,
        stop_asked=lambda: False,
        scaling=Scaling(divergence=DivergencePolicy(1)),
    )


def state(live: Any) -> dict[str, Any]:
    """What a checkpoint gets: the kind of each tensor, whether it is a replica, its bytes."""
    import torch

    from zerotoolsd.trainer.model.sharding import is_whole, local_part

    found = {}
    for name, tensor in live.flat().items():
        is_cut = type(tensor).__name__ == "DTensor"
        values, box = local_part(tensor) if is_cut else (tensor, ())
        whole = bytes(values.contiguous().view(-1).view(torch.uint8).tolist())
        found[name] = (is_cut, is_whole(tensor), str(tensor.dtype), box, whole)
    return found


@pytest.mark.parametrize(
    ("stage", "precision", "optimizer"),
    [(0, "fp32", "adamw"), (1, "bf16", "adamw"), (3, "bf16", "adamw"), (2, "fp32", "adafactor")],
)
def test_steps_and_saved_tensors_are_those_of_fsdp2(
    stage: int, precision: str, optimizer: str, threadless: None
) -> None:
    from torch.distributed.fsdp import FSDPModule

    kinds = {"fsdp2": Wrapped, "plain": MemoryLayout}
    results, saved = {}, {}
    for name, kind in kinds.items():
        layout = kind(stage=stage, world_size=1, precision=precision, optimizer=optimizer)
        live, train = made(layout, optimizer)
        assert isinstance(live.model, FSDPModule) == (name == "fsdp2")
        results[name] = [step(live, train, number) for number in range(2)]
        saved[name] = state(live)
    assert [each.loss for each in results["plain"]] == [each.loss for each in results["fsdp2"]]
    norms = [[each.grad_norm for each in results[name]] for name in kinds]
    assert norms[0] == pytest.approx(norms[1], rel=1e-15)
    assert saved["plain"] == saved["fsdp2"]


@contextmanager
def waits(on_host: Iterable[Any] = ()) -> Iterator[Counter[str]]:
    """Count what has the host wait for the device, from Python and inside of torch. Reads of
    tensors that are always `on_host` do not."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    found: Counter[str] = Counter()
    kept = list(on_host)

    def waits_for(args: Any) -> bool:
        return not any(args and args[0] is tensor for tensor in kept)

    class Methods(TorchFunctionMode):  # type: ignore[misc] # torch's types are not followed
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            name = getattr(function, "__name__", "")
            if name in WAITS and waits_for(args):
                found[name] += 1
            return function(*args, **(kwargs or {}))

    class Operations(TorchDispatchMode):  # type: ignore[misc] # as above
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            is_wait = "local_scalar_dense" in str(function) or "nonzero" in str(function)
            if is_wait and waits_for(args):
                found[str(function)] += 1
            return function(*args, **(kwargs or {}))

    with Methods(), Operations():
        yield found


def test_what_waits_is_counted() -> None:
    import torch

    one, counter = torch.ones(()), torch.ones(())
    with waits([counter]) as found:
        assert float(one) + one.item() + sum(one.view(1).tolist()) == 3
        assert bool(one > 0)
        assert float(counter) == 1
    assert found["item"] + found["__float__"] == 2
    assert found["tolist"]
    assert found["__bool__"]


@pytest.mark.parametrize(
    ("options", "optimizer", "micro", "more"),
    [
        ({"precision": "fp32"}, "adamw", 1, 0),
        ({"precision": "bf16"}, "adamw", None, 0),
        ({"precision": "bf16", "offload_optimizer": "cpu"}, "adamw", None, 0),
        ({"precision": "fp32"}, "adamw8bit", None, 0),
        ({"precision": "fp32"}, "muon", None, 0),
        # Its rate is that of the weights' own size, and that of the update.
        ({"precision": "fp32"}, "adafactor", None, 1),
    ],
)
def test_a_step_and_its_log_wait_for_the_device_once(
    options: dict[str, str], optimizer: str, micro: int | None, more: int, threadless: None
) -> None:
    """The loss, the norm and the stop request come in one copy: few steps need another."""
    from zerotoolsd.trainer.rank.notify_supervisor import Notifier
    from zerotoolsd.trainer.rank.rank_settings import Rank
    from zerotoolsd.trainer.reporting.reporter import Reporter

    live, train = made(
        MemoryLayout(stage=3, world_size=1, optimizer=optimizer, **options), optimizer
    )
    counters = [tensor for name, tensor in live.optimizer.state().items() if name.endswith(".step")]
    reporter = Reporter(Rank(0, 0, 1), Notifier(None, 0), steps=2)
    for number in range(2):
        with waits(counters) as found:
            outcome = step(live, train, number, micro)
            reporter.stepped(number + 1, outcome, 32, 1.0)
        assert found == {"tolist": 1 + more}


def test_the_host_does_not_wait_for_offloaded_gradients_before_their_norm_is_asked_for(
    threadless: None,
) -> None:
    from zerotoolsd.trainer.engine_torch.master_weights import DirectCopy

    layout = MemoryLayout(stage=2, world_size=1, precision="bf16", offload_optimizer="cpu")
    live, train = made(layout)
    waited = []

    class Noted(DirectCopy):
        def wait_on_host(self) -> None:
            waited.append("host")

        def wait_on_device(self) -> None:
            waited.append("device")

    live.masters._copies = Noted()
    step(live, train, 0)
    # For the norm; before the only bucket is updated; before the next forward pass.
    assert waited == ["device", "host", "device"]


def test_preferences_wait_once(threadless: None) -> None:
    live, train = made(MemoryLayout(stage=0, world_size=1, precision="fp32"))
    with waits() as found:
        outcome = step(live, train, 0, 1, pairs=True)
    assert found == {"tolist": 1}
    assert outcome.rewards is not None


@since_torch("2.9", "without grouped_mm, transformers asks which experts have tokens")
def test_routers_do_not_wait(threadless: None) -> None:
    live, train = made(MemoryLayout(stage=0, world_size=1, precision="fp32"), routed=True)
    with waits() as found:
        step(live, train, 0, 1)
    assert found == {"tolist": 1}
