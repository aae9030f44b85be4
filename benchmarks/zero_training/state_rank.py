"""A rank that counts what it holds when all gradients of a step are there; run by
`benchmarks.zero_training.states`.

Rank 0 prints one JSON object: by the job's name the parameters, and of the rank that has most the
bytes predicted and found by place.

Tensors are found by walking over all Python objects, so nothing that is held escapes; where one
is, the ledger of allocations knows. What it does not know was allocated by torch, and is with the
parameter whose gradient it is, or on the device.
"""

from __future__ import annotations

import gc
import runpy
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
each_job = runpy.run_path(str(ROOT / "harness" / "rank_jobs.py"))["each_job"]

import torch  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from zerotools.core.training_memory_layout import DEVICE, DISK, HOST  # noqa: E402
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of  # noqa: E402
from zerotools.ops.estimate.state_memory import (  # noqa: E402
    bytes_at,
    gathered_bytes,
    textbook_state,
    torch_engine_state,
)
from zerotoolsd.trainer.allocate_tensors import SCRATCH  # noqa: E402
from zerotoolsd.trainer.engine_torch.engine import TorchEngine  # noqa: E402
from zerotoolsd.trainer.engine_torch.training_tensors import LiveState  # noqa: E402
from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config  # noqa: E402
from zerotoolsd.trainer.model.predict_state_memory import parameters_of  # noqa: E402
from zerotoolsd.trainer.prepare_and_train import prepare_training  # noqa: E402
from zerotoolsd.trainer.rank.notify_supervisor import Notifier  # noqa: E402
from zerotoolsd.trainer.rank.process_group import WorldGroup  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import read_spec  # noqa: E402
from zerotoolsd.trainer.reporting.reporter import (  # noqa: E402
    Phases,
    Reporter,
)

PLACES = (DEVICE, HOST, DISK)
LET_GO_SECONDS = 0.05
"""A thread of gloo lets go of the last buffer that it has reduced a moment after it has told of it,
when Python's lock is free."""


def storages() -> dict[int, torch.Tensor]:
    """A tensor of every storage of this process, by the storage's address."""
    found = {}
    for tensor in (each for each in gc.get_objects() if isinstance(each, torch.Tensor)):
        for one in (tensor, tensor.grad if tensor.is_leaf else None):
            if one is not None and one.device.type != "meta":
                found[_address(one)] = _local(one)
    found.pop(0, None)
    return found


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _address(tensor: torch.Tensor) -> int:
    address: int = _local(tensor).untyped_storage().data_ptr()
    return address


def made_since(before: Collection[int]) -> Iterator[torch.Tensor]:
    """A tensor of every storage that is not one of `before`."""
    return (tensor for address, tensor in storages().items() if address not in before)


def by_place(live: LiveState, before: Collection[int]) -> Counter[str]:
    """Bytes that were not there before, by place; room that updates are made in aside."""
    ledger, found = live.memory.ledger, Counter[str]()
    with_parameter = {
        _address(p.grad): ledger.tier_of(_local(p))
        for p in live.model.parameters()
        if p.grad is not None
    }
    for tensor in made_since(before):
        known = ledger.tier_of(tensor) or with_parameter.get(_address(tensor))
        found[known or DEVICE] += tensor.untyped_storage().nbytes()
    for place in PLACES:
        found[place] -= ledger.live[place, SCRATCH]
    return found


def of_blocks(model: torch.nn.Module) -> int:
    """Bytes of whole weights that FSDP holds now."""
    size = 0
    for module in model.modules():
        if isinstance(module, FSDPModule):
            parameters: Any = module._get_fsdp_state()._fsdp_param_group.fsdp_params
            for parameter in parameters:
                size += sum(o.untyped_storage().nbytes() for o in parameter.all_gather_outputs)
    return size


def inner(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """A module within each block: its forward pass is while the block is gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule) and module is not model:
            yield next(module.children())


def count(run_dir: Path, group: WorldGroup) -> dict[str, Any]:
    """Run the job in `run_dir`; what it was to hold, and what it held."""
    spec = read_spec(run_dir)
    gc.collect()
    before = set(storages())
    reporter = Reporter(group.rank, Notifier(None, group.rank.index), steps=1)
    ready = prepare_training(spec, run_dir, group, reporter, Phases(time.monotonic()))
    assert isinstance(ready.engine, TorchEngine)
    live = ready.engine.live
    found: dict[str, Counter[str]] = {}
    largest = [0]

    def note_blocks(*_: Any) -> None:
        largest[0] = max(largest[0], of_blocks(live.model))

    def note(*_: Any) -> None:
        time.sleep(LET_GO_SECONDS)
        found["held"] = found.get("held", Counter()) | by_place(live, before)

    live.optimizer.buckets[0].optimizers[0].register_step_pre_hook(note)
    # Before FSDP's own hook gathers anything: what one micro batch left to the next.
    live.model.register_forward_pre_hook(note, prepend=True)
    for module in inner(live.model):
        module.register_forward_hook(note_blocks)
    ready.train()
    meta_model, layout = make_meta_model(read_config(spec.model), spec.lora), memory_layout_of(spec)
    parameters = parameters_of(meta_model)
    ours, paper = torch_engine_state(parameters, layout), textbook_state(parameters, layout)
    held = group.gathered(dict(found["held"]))
    return {
        "parameters": sum(each.numel for each in parameters),
        "textbook": {place: bytes_at(paper, place) for place in PLACES},
        "predicted": {place: bytes_at(ours, place) for place in PLACES},
        "held": {place: max(each.get(place, 0) for each in held) for place in PLACES},
        "gathered": gathered_bytes(parameters, layout),
        "held_gathered": max(group.gathered(largest[0])),
    }


def count_deepspeed(run_dir: Path, group: WorldGroup) -> dict[str, Any]:
    """What DeepSpeed itself holds before its second update, when its state is there."""
    import deepspeed

    spec = read_spec(run_dir)
    gc.collect()
    before = set(storages())
    model = AutoModelForCausalLM.from_config(read_config(spec.model))
    parameters = parameters_of(make_meta_model(read_config(spec.model)))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=dict(spec.deepspeed.tree)
    )
    tokens = torch.zeros((1, 32), dtype=torch.int64, device=group.device)
    batches = 2 * engine.gradient_accumulation_steps()
    for number in range(batches):
        engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
        if number < batches - 1:
            engine.step()
    gc.collect()
    held = sum(tensor.untyped_storage().nbytes() for tensor in made_since(before))
    paper = textbook_state(parameters, memory_layout_of(spec))
    engine.destroy()
    return {
        "parameters": sum(each.numel for each in parameters),
        "textbook": {place: bytes_at(paper, place) for place in PLACES},
        "all": max(group.gathered(held)),
    }


def of_either(run_dir: Path, group: WorldGroup) -> dict[str, Any]:
    """The job in `run_dir`, counted as its engine is."""
    by_deepspeed = read_spec(run_dir).engine == "deepspeed"
    return (count_deepspeed if by_deepspeed else count)(run_dir, group)


if __name__ == "__main__":
    each_job(of_either)
