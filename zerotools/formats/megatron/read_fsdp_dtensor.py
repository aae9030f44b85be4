"""Read fsdp_dtensor, the format of Megatron-FSDP: a plain DCP in a Megatron run.

    args, iteration, checkpoint_version, ...                     values, each with its own key
    model.module.NAME                                            the masters; no other weights
    optimizer.state.module.module.module.NAME.exp_avg, .step     state; a step for each parameter
    optimizer.param_to_group_meta.module.module.module.NAME.lr   options of each parameter

The number of `module.` depends on the classes around the model. Gated layers are saved as halves
(`linear_fc1.weight_w`, `weight_v`). Tensors are whole, whatever the number of tensor-parallel and
data-parallel ranks. Experts are numbered over all expert-parallel ranks, but layers are numbered on
each pipeline stage separately. So with pipeline parallelism, layers of several stages have the same
name, and only one of them is saved.

Source: megatron/core/transformer/fsdp_dtensor_checkpoint.py and optimizer/distrib_optimizer.py
(`sharded_param_state_fsdp_dtensor`) of 0.16, training/checkpointing.py of Megatron-LM.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Problem, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.training_state import ParamGroup
from zerotools.formats.megatron.torch_dist_keys import HALVES, is_buffer, megatron_expert_name
from zerotools.formats.megatron.training_state import (
    MegatronFacts,
    MegatronNative,
    aliases_of,
    facts_of,
    origin_of,
)
from zerotools.formats.megatron.unstack_tensors import join_halves
from zerotools.io.distcp.check_data_files import data_files, existing_sizes, mixed_saves
from zerotools.io.distcp.dcp_directory import metadata_names, saving_ranks, tensor_of
from zerotools.io.distcp.dcp_file_names import METADATA
from zerotools.io.distcp.item_chunks import BlobTrees, Items
from zerotools.io.distcp.metadata import Metadata
from zerotools.io.files.tolerated_damage import (
    raise_or_record,
    record_lost_part,
    record_lost_unnamed,
)
from zerotools.io.huggingface.model_sidecars import model_sidecars

TITLE = "Megatron fsdp_dtensor"
_MODEL = re.compile(r"model\.(?:module\.)*(?P<name>.+)", re.S)
_STATE = re.compile(r"optimizer\.state\.(?:module\.)*(?P<name>.+)\.(?P<role>[^.]+)", re.S)
_META = re.compile(r"optimizer\.param_to_group_meta\.(?:module\.)*(?P<name>.+)\.([^.]+)", re.S)
_HALF = re.compile(r"model\..+\.linear_fc1\..+_[wv]", re.S)
_OF_RUN = ("args", "iteration", "checkpoint_version", "opt_param_scheduler")
_LONGEST = 16


def is_fsdp_dtensor(metadata: Metadata) -> bool:
    """Return whether Megatron-FSDP saved the checkpoint: it has keys of Megatron-FSDP's optimizer,
    or keys of the halves of gated weights.
    """
    if "args" not in metadata.blobs:
        return False
    halves = any(map(_HALF.fullmatch, metadata.tensors))
    return halves or any(map(_META.fullmatch, metadata.blobs))


def read_fsdp_dtensor(path: Path, metadata: Metadata) -> Checkpoint:
    """Return the checkpoint in the directory `path`; `metadata` is the content of its
    `.metadata`.

    Raises:
        BadFile: a value is damaged, or the two halves of a layer do not fit together.
    """
    data = data_files(path, metadata)
    values = BlobTrees(path, metadata.blobs)
    whole = {
        name: item.offset + item.length <= data.sizes.get(item.file, -1)
        for name, item in metadata.blobs.items()
        if name in _OF_RUN
    }
    facts = facts_of(dict(_of_run(path, metadata, values, whole)))
    files = data.sizes | existing_sizes(path, metadata_names(path))
    items = Items(path, metadata)
    keys = _keys(metadata)
    stored = {
        key: tensor_of(items, path, flat, metadata.tensors[flat], files)
        for flat, key in keys.items()
    }
    tensors = _whole(path, stored)
    return Checkpoint(
        path,
        tensors,
        origin_of(path, TITLE, facts, ranks=saving_ranks(metadata) or None, notes=data.notes),
        aliases=aliases_of(facts, tensors),
        state=values,
        files=files,
        model_sidecars=model_sidecars(path),
        problems=[
            *_with_lost_arguments(data.problems, metadata, whole),
            *mixed_saves(path, metadata, keys, stored),
            *lost_layers(path, facts, tensors),
            *lost_experts(path, facts, tensors),
        ],
        archives=metadata.empty_archives(),
        native=MegatronNative(facts, groups=partial(_groups, values)),
    )


def _of_run(
    path: Path, metadata: Metadata, values: BlobTrees, whole: Mapping[str, bool]
) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each value of the run that is not lost, such as the arguments."""
    for name in (name for name in _OF_RUN if name in values):
        file, found = path / metadata.blobs[name].file, None
        if whole[name]:
            try:
                found = values[name]
            except BadFile as error:
                told = (
                    f"{error}; this file has the value {name} of the run: take another checkpoint"
                )
                raise_or_record(file, BadFile(told))
        else:
            record_lost_part(file, f"it should have the value {name} of the run, which is lost")
        if found is not None:
            yield name, found
        elif name == "args":  # only the arguments show which weights are tied
            record_lost_unnamed(file)


def _with_lost_arguments(
    problems: Iterable[Problem], metadata: Metadata, whole: Mapping[str, bool]
) -> Iterator[Problem]:
    """Yield `problems`. A problem with the file of the arguments is changed: it prevents any
    output, because only the arguments show which weights are tied.
    """
    item = metadata.blobs.get("args")
    for problem in problems:
        is_lost = item is not None and problem.file == item.file and not whole["args"]
        yield replace(problem, prevents_output=problem.prevents_output or is_lost)


def _keys(metadata: Metadata) -> dict[str, Key]:
    found: dict[str, Key] = {}
    taken: set[Key] = set()
    for flat in metadata.tensors:
        key = Key(flat, "state")
        if match := _STATE.fullmatch(flat):
            key = Key(megatron_expert_name(match["name"]), match["role"])
        elif match := _MODEL.fullmatch(flat):
            name = megatron_expert_name(match["name"])
            key = Key(name, "buffer" if is_buffer(name) else "param")
        found[flat] = key if key not in taken else Key(flat, "state")
        taken.add(found[flat])
    return found


def _whole(path: Path, stored: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """Return the tensors with the two halves of each gated layer joined. Both halves have a step;
    one of the steps is kept.
    """
    numbers = {key: tensor for key, tensor in stored.items() if not tensor.shape}
    found = join_halves(path, {key: t for key, t in stored.items() if key not in numbers})
    for key, tensor in numbers.items():
        is_half = key.name.endswith(HALVES) and Key(key.name[:-2], "param") in found
        found.setdefault(Key(key.name[:-2], key.role) if is_half else key, tensor)
    return found


def _groups(values: BlobTrees) -> tuple[ParamGroup, ...]:
    """Return param groups of parameters with equal options.

    Raises:
        BadFile: a value is damaged.
    """
    options: dict[str, dict[str, Any]] = {}
    for flat in values:
        if match := _META.fullmatch(flat):
            options.setdefault(megatron_expert_name(match["name"]), {})[match[2]] = values[flat]
    groups: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for name, said in options.items():
        strange = next((option for option, value in said.items() if not _is_plain(value)), None)
        if strange is not None:
            raise BadFile(
                f"the option {strange[:80]} of {name[:80]} is not a number, a text or a short list"
            )
        groups.setdefault(repr(sorted(said.items())), (said, []))[1].append(name)
    return tuple(ParamGroup(tuple(names), said) for said, names in groups.values())


def _is_plain(value: Any) -> bool:
    """Return whether a value can be compared quickly: it is a number, a string, or a short
    sequence of numbers or strings.
    """
    parts = value if isinstance(value, list | tuple) and len(value) < _LONGEST else (value,)
    return all(part is None or isinstance(part, bool | int | float | str) for part in parts)


_LAYER = re.compile(r"decoder\.layers\.(\d{1,6})\.", re.S)
_EXPERT = re.compile(r"(.*\.experts\.local_experts\.)(\d{1,6})(\..+)", re.S)
_ADVICE = (
    "The others are lost, because ranks saved them under the same names: take a checkpoint of a "
    "run {}"
)


def lost_layers(path: Path, facts: MegatronFacts, keys: Iterable[Key]) -> Iterator[Problem]:
    """Yield a problem if the checkpoint has fewer layers than the run's arguments say.

    Such a checkpoint holds one tensor for each name. If two ranks use the same name for different
    tensors, torch's writer keeps the first, and only the expected number shows that a tensor is
    lost. This happens to layers of pipeline stages, and to biases of Transformer Engine's experts
    (`mlp.experts.linear_fc1.bias0`), because Megatron does not number them over all ranks.
    """
    wanted = facts.count("decoder_num_layers") or facts.count("num_layers")
    found = {int(match[1]) for key in keys if (match := _LAYER.match(key.name))}
    if wanted is None or not found or len(found) >= wanted:
        return
    advice = _ADVICE.format(
        "without pipeline parallelism, or export the model with Megatron on the cluster of the run"
    )
    said = f"{path} has {len(found)} of {wanted} layers (num_layers). {advice}"
    yield Problem(said, METADATA, prevents_output=True)


def lost_experts(path: Path, facts: MegatronFacts, keys: Iterable[Key]) -> Iterator[Problem]:
    """Yield a problem for the first tensor that fewer experts have than the run's arguments say."""
    wanted = facts.count("num_experts")
    found: dict[tuple[str, str, str], set[int]] = {}
    for key in keys:
        if match := _EXPERT.fullmatch(key.name):
            found.setdefault((match[1], match[3], key.role), set()).add(int(match[2]))
    for (before, after, role), numbers in found.items():
        if wanted is not None and len(numbers) < wanted:
            key = Key(f"{before}{{{min(numbers)}..{max(numbers)}}}{after}", role)
            advice = _ADVICE.format(
                "with one expert-parallel rank, or export the model with Megatron on the cluster "
                "of the run"
            )
            said = (
                f"{path} has {key} for {len(numbers)} of {wanted} experts (num_experts). {advice}"
            )
            yield Problem(said, METADATA, prevents_output=True)
            return
