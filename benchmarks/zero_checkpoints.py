"""Write ZeRO-2 and ZeRO-3 checkpoints of any size and world size, in DeepSpeed's own layout.

    python -m benchmarks.zero_checkpoints OUT --model 271M --stage 3 --ranks 4 [--sparse]

Model and optimizer files are what DeepSpeed 0.19.8 writes for a Llama that trains in bf16 with
torch's AdamW in two param groups, weights with decay and norms without. The numbers in them are
made up (`benchmarks.contents`), with right CRCs. `--sparse` writes all metadata and leaves holes
for the numbers: a 70B checkpoint of 1,024 ranks takes a gigabyte on the disk.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.contents import STEP, STEPS, ZEROS, Run, Storages, run, tensor
from zerotools.core.checkpoint import Opaque
from zerotools.core.dtypes import BFLOAT16
from zerotools.io.torchzip.pickle_values import Global, Ordered, Size, StoredTensor

VERSION = "0.19.8"
TAG = "global_step100"
SUB_GROUP_SIZE = 10**9
MOMENTS = ("exp_avg", "exp_avg_sq")
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Llama:
    """The sizes that make the shapes of a Llama without tied embeddings."""

    layers: int
    hidden: int
    intermediate: int
    key_value: int
    vocabulary: int = 32000

    def shapes(self) -> Shapes:
        """Its parameters, in the order of `named_parameters`."""
        found: Shapes = {"model.embed_tokens.weight": (self.vocabulary, self.hidden)}
        for layer in range(self.layers):
            for name, shape in self._layer():
                found[f"model.layers.{layer}.{name}.weight"] = shape
        found["model.norm.weight"] = (self.hidden,)
        found["lm_head.weight"] = (self.vocabulary, self.hidden)
        return found

    def _layer(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        wide, narrow, deep = self.hidden, self.key_value, self.intermediate
        yield "self_attn.q_proj", (wide, wide)
        yield "self_attn.k_proj", (narrow, wide)
        yield "self_attn.v_proj", (narrow, wide)
        yield "self_attn.o_proj", (wide, wide)
        yield "mlp.gate_proj", (deep, wide)
        yield "mlp.up_proj", (deep, wide)
        yield "mlp.down_proj", (wide, deep)
        yield "input_layernorm", (wide,)
        yield "post_attention_layernorm", (wide,)


MODELS = {
    "tiny": Llama(2, 24, 40, 8, 100),
    "271M": Llama(16, 1024, 2816, 1024),
    "2B": Llama(36, 2048, 5632, 2048),
    "deep": Llama(64, 512, 1408, 512),
    "7B": Llama(32, 4096, 11008, 4096),
    "70B": Llama(80, 8192, 28672, 1024),
}


def param_groups(shapes: Shapes) -> list[Shapes]:
    """Weights that decay, and norms that do not."""
    matrices = {name: shape for name, shape in shapes.items() if len(shape) > 1}
    return [matrices, {name: shape for name, shape in shapes.items() if len(shape) == 1}]


def generate(
    out: Path,
    shapes: Shapes,
    *,
    stage: int,
    ranks: int,
    sparse: bool = False,
    written: int | None = None,
) -> None:
    """Write a save directory with one tag: `ranks` optimizer files, and model files; of stage 3
    those of the first `written` ranks alone."""
    directory = out / TAG
    directory.mkdir(parents=True)
    (out / "latest").write_text(TAG)
    groups, order = param_groups(shapes), list(shapes)
    if stage == 3:
        _write_stage_3(directory, groups, order, ranks, sparse, written or ranks)
    else:
        _write_stage_2(directory, groups, order, ranks, sparse)


def _write_stage_2(
    directory: Path, groups: list[Shapes], order: list[str], ranks: int, sparse: bool
) -> None:
    files = Storages()
    module = _whole_weights(files, groups, order)
    tree = _model_tree(module, groups, 2, ranks) | {
        "frozen_param_shapes": Ordered(),
        "frozen_param_fragments": Ordered(),
    }
    files.write(directory / "mp_rank_00_model_states.pt", tree, sparse=sparse)
    for rank in range(ranks):
        storages = Storages()
        top = {"optimizer_state_dict": _stage_2_state(storages, groups, rank, ranks)}
        _write_optimizer(directory, storages, top, rank, 2, sparse)


def _write_stage_3(
    directory: Path,
    groups: list[Shapes],
    order: list[str],
    ranks: int,
    sparse: bool,
    written: int,
) -> None:
    cut = [sub_groups(group, ranks) for group in groups]
    flat = [shapes for group in cut for shapes in group]
    for rank in range(written):
        storages = Storages()
        module = Ordered({name: tensor(storages.add([], BFLOAT16), 0, (0,)) for name in order})
        tree = _model_tree(module, flat, 3, ranks)
        name = f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
        storages.write(directory / name, tree, sparse=sparse)
        storages = Storages()
        top = {"optimizer_state_dict": _stage_3_state(storages, cut, rank, ranks)}
        _write_optimizer(directory, storages, top, rank, 3, sparse)


def _write_optimizer(
    directory: Path, storages: Storages, top: dict[str, Any], rank: int, stage: int, sparse: bool
) -> None:
    name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
    tree = top | {"ds_config": _config(stage), "ds_version": VERSION}
    storages.write(directory / name, tree, sparse=sparse)


def _whole_weights(files: Storages, groups: list[Shapes], order: list[str]) -> Ordered:
    """16-bit weights: views of one storage for each group."""
    views: dict[str, StoredTensor] = {}
    for group in groups:
        storage = files.add([run(n, "param", 0, prod(s)) for n, s in group.items()], BFLOAT16)
        at = 0
        for name, shape in group.items():
            views[name] = tensor(storage, at, shape)
            at += prod(shape)
    return Ordered({name: views[name] for name in order})


def _model_tree(module: Ordered, groups: list[Shapes], stage: int, ranks: int) -> dict[str, Any]:
    sized = [Ordered({name: Size(shape) for name, shape in group.items()}) for group in groups]
    return {
        "module": module,
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": sized,
        "frozen_param_shapes": Ordered(),
        "shared_params": {},
        "frozen_param_fragments": Ordered(),
        "lr_scheduler": {"last_batch_iteration": 99},
        "data_sampler": None,
        "random_ltd": None,
        "skipped_steps": 0,
        "global_steps": STEP,
        "global_samples": 100 * ranks,
        "dp_world_size": ranks,
        "mp_world_size": 1,
        "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
        "ds_config": _config(stage),
        "ds_version": VERSION,
    }


def _config(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    }


def _stage_2_state(
    storages: Storages, groups: list[Shapes], rank: int, ranks: int
) -> dict[str, Any]:
    parts = [_partition(group, rank, ranks) for group in groups]
    state = {number: _adam_state(storages, part.of_role) for number, part in enumerate(parts)}
    masters = []
    for part in parts:
        vector = storages.flat(part.of_role("param"), used=part.size - part.padding)
        masters.append(_trainable(vector))
    return {
        "loss_scaler": _loss_scaler(),
        "dynamic_loss_scale": False,
        "overflow": False,
        "clip_grad": 1.0,
        "base_optimizer_state": {
            "state": state,
            "param_groups": [_param_group(n, [n]) for n in range(len(groups))],
        },
        "single_partition_of_fp32_groups": masters,
        "zero_stage": Opaque("deepspeed.runtime.zero.config", "ZeroStageEnum", (2,), called=True),
        "group_paddings": [part.padding for part in parts],
        "param_alignment_paddings": [[0] * len(group) for group in groups],
        "partition_count": [ranks] * len(groups),
        "ds_version": VERSION,
        "param_slice_mappings": [part.mapping() for part in parts],
    }


def _stage_3_state(
    storages: Storages, groups: list[list[Shapes]], rank: int, ranks: int
) -> dict[str, Any]:
    flat = [shapes for group in groups for shapes in group]
    slices = [_Slices(shapes, rank, ranks) for shapes in flat]
    state = {n: _adam_state(storages, part.of_role) for n, part in enumerate(slices)}
    masters = [_with_id(storages.flat(p.of_role("param")), n) for n, p in enumerate(slices)]
    numbers = iter(range(len(flat)))
    members = [[next(numbers) for _ in group] for group in groups]
    return {
        "zero_stage": Opaque("deepspeed.runtime.zero.config", "ZeroStageEnum", (3,), called=True),
        "loss_scaler": _loss_scaler(),
        "dynamic_loss_scale": False,
        "overflow": False,
        "partition_count": ranks,
        "optimizer_state_dict": {
            "state": state,
            "param_groups": [_param_group(n, params) for n, params in enumerate(members)],
        },
        "fp32_flat_groups": masters,
    }


@dataclass(frozen=True)
class _Partition:
    """Stages 1 and 2: what one rank has of a group: (name, begin, end) of each parameter."""

    stretches: list[tuple[str, int, int]]
    size: int
    padding: int

    def of_role(self, role: str) -> list[Run]:
        runs = [run(name, role, begin, end) for name, begin, end in self.stretches]
        return [*runs, Run(ZEROS, self.padding)]

    def mapping(self) -> Ordered:
        """`param_slice_mappings`: where in the rank's vector each parameter lies."""
        addresses, at = Ordered(), 0
        for name, begin, end in self.stretches:
            addresses[name] = Opaque(
                "deepspeed.utils.tensor_fragment",
                "fragment_address",
                state={"numel": end - begin, "start": at},
            )
            at += end - begin
        return addresses


def _partition(group: Shapes, rank: int, ranks: int) -> _Partition:
    total = sum(map(prod, group.values()))
    size = -(-total // (2 * ranks)) * 2
    low, high, at, stretches = rank * size, (rank + 1) * size, 0, []
    for name, shape in group.items():
        begin, end = max(at, low), min(at + prod(shape), high)
        if begin < end:
            stretches.append((name, begin - at, end - at))
        at += prod(shape)
    return _Partition(stretches, size, min(size, max(0, high - total)))


@dataclass(frozen=True)
class _Slices:
    """Stage 3: one rank's slice of each parameter of a sub-group, each padded to equal width."""

    shapes: Shapes
    rank: int
    ranks: int

    def of_role(self, role: str) -> list[Run]:
        runs = []
        for name, shape in self.shapes.items():
            numel = prod(shape)
            width = -(-numel // self.ranks)
            begin, end = (min(numel, width * r) for r in (self.rank, self.rank + 1))
            runs += [run(name, role, begin, end), Run(ZEROS, width - (end - begin))]
        return [part for part in runs if part.count]


def sub_groups(group: Shapes, ranks: int, limit: int = SUB_GROUP_SIZE) -> list[Shapes]:
    """A sub-group is closed as soon as a rank's slices in it reach the limit."""
    found: list[Shapes] = [{}]
    size = 0
    for name, shape in group.items():
        if size >= limit:
            found.append({})
            size = 0
        found[-1][name] = shape
        size += -(-prod(shape) // ranks)
    return found


def _adam_state(storages: Storages, of_role: Callable[[str], list[Run]]) -> dict[str, StoredTensor]:
    step = tensor(storages.add([Run(STEPS, 1)]), 0, ())
    return {"step": step} | {role: storages.flat(of_role(role)) for role in MOMENTS}


def _trainable(vector: StoredTensor) -> StoredTensor:
    return StoredTensor(
        vector.storage, vector.dtype, 0, vector.shape, (1,), requires_grad=True, hooks=Ordered()
    )


def _with_id(vector: StoredTensor, number: int) -> Opaque:
    """As torch pickles a tensor that has an attribute: stage 3 sets `ds_id`."""
    args = (vector.storage, 0, vector.shape, (1,), True, Ordered())
    rebuild, cls = Global("torch._utils", "_rebuild_tensor_v2"), Global("torch", "Tensor")
    wrapped = (rebuild, cls, args, {"ds_id": f"{number}_{number}"})
    return Opaque("torch._tensor", "_rebuild_from_type_v2", wrapped, called=True)


def _loss_scaler() -> Opaque:
    state = {"cur_scale": 1.0, "dynamic": False}
    return Opaque("deepspeed.runtime.fp16.loss_scaler", "LossScaler", state=state)


def _param_group(number: int, params: list[int]) -> dict[str, Any]:
    return {
        "lr": 1e-4,
        "betas": (0.9, 0.95),
        "eps": 1e-8,
        "weight_decay": 0.0 if number else 0.1,
        "amsgrad": False,
        "params": params,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", choices=MODELS, default="271M")
    parser.add_argument("--stage", type=int, choices=(2, 3), default=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--sparse", action="store_true", help="metadata only")
    asked = parser.parse_args()
    generate(
        asked.out,
        MODELS[asked.model].shapes(),
        stage=asked.stage,
        ranks=asked.ranks,
        sparse=asked.sparse,
    )


if __name__ == "__main__":
    main()
