"""Lay out any checkpoint as a DeepSpeed universal checkpoint, which the engine partitions on load.

    OUT/latest_universal
    OUT/<tag>_universal/mp_rank_00_model_states.pt                stages 1 and 2, whole tensors
    OUT/<tag>_universal/zero_pp_rank_0_mp_rank_00_model_states.pt stage 3, for any number of ranks
    OUT/<tag>_universal/zero/optimizer_state.pt
    OUT/<tag>_universal/zero/<parameter>/{fp32,exp_avg,...,step}.pt

The file of a parameter has one of two forms. Usually it is a dict with the tensor in its full
shape, which DeepSpeed 0.19.2 and later load at every stage. If the output is for stage 3 alone, it
is a flat tensor, which earlier versions load at stage 3, too. Stages 1 and 2 cannot load this form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import LOOSE, Dropped, FilePlan, Target
from zerotools.core.training_state import TrainingState
from zerotools.formats.deepspeed.change_stage import new_stored_tensor as new_tensor
from zerotools.formats.deepspeed.partitioning.flat_layout import partition_size, uses_muon
from zerotools.formats.deepspeed.partitioning.kept_for_writer import DeepSpeedNative
from zerotools.formats.deepspeed.schema.ds_config import ROUND_ROBIN
from zerotools.formats.deepspeed.schema.expert_parallel import StackedExperts
from zerotools.formats.deepspeed.schema.state_dict_keys import schedule_of
from zerotools.formats.deepspeed.schema.tag_file_names import LATEST, ZERO, model_file
from zerotools.formats.deepspeed.universal.loadable_contents import (
    MOMENTS,
    STEP,
    UniversalContents,
    common_options,
    contents_of,
    expert_tree,
    is_writable,
    optimizer_tree,
    source_experts,
    source_model,
    source_optimizer,
    universal_model_tree,
)
from zerotools.formats.deepspeed.universal.optimizer_state import OPTIMIZER_STATE
from zerotools.formats.deepspeed.writing.lay_out_resharded import run_sidecars
from zerotools.formats.deepspeed.writing.plan_pt_file import FileDraft, FileLayout
from zerotools.io.numeric.scalar_tensors import scalar_bytes
from zerotools.io.output.files_without_tensors import file_of_bytes, sidecar_files
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile

SUFFIX = "_universal"
_NEW, _EMPTY = "new", "empty"
MODEL, STAGE_3_MODEL = model_file(0), model_file(0, 0)
# Scripts that read the optimizer files of a tag. A universal checkpoint has no such files.
_SCRIPTS = ("zero_to_fp32.py", "zero_to_torch.py")


@dataclass
class _Files:
    """The files of the output that are planned so far, in the tag directory. `carried` are tensors
    with bytes that are known, or that are copied as part of a file.
    """

    tag: str
    plans: dict[str, FilePlan] = field(default_factory=dict)
    tensors: dict[Key, Tensor] = field(default_factory=dict)
    carried: dict[Key, Tensor] = field(default_factory=dict)

    def add(
        self,
        name: str,
        tree: Any,
        made: Mapping[Key, StoredTensor],
        *,
        known: Mapping[str, bytes] = MappingProxyType({}),
        source: TorchFile | None = None,
    ) -> None:
        """Add a file with the tree `tree`. Its tensors in `made` are copied from the source one by
        one, `known` has the bytes of some storages, and the rest is copied from the file `source`.
        """
        file = f"{self.tag}/{name}"
        output = FileDraft.of(tree, source, made.values(), known=known).at(file)
        self.plans[file] = output.plan({})
        self.tensors |= {key: _placed(output, file, stored) for key, stored in made.items()}

    def add_known(
        self, name: str, key: Key, tree: Any, stored: StoredTensor, known: bytes | None
    ) -> None:
        """Add a file with one tensor, which has the bytes `known` or, if that is None, zeros."""
        file = f"{self.tag}/{name}"
        data = {} if known is None else {_NEW: known}
        made = [stored] if known is None else []
        output = FileDraft.of(tree, None, made, known=data).at(file)
        whole = [(0, stored.storage.numel)] if known is None and stored.storage.numel else []
        self.plans[file] = output.plan({_NEW: whole} if whole else {})
        self.carried[key] = _placed(output, file, stored)


def _placed(output: FileLayout, file: str, stored: StoredTensor) -> Tensor:
    if stored.storage.numel:
        return output.placed(file, stored)
    return Tensor(stored.dtype, stored.shape, [Chunk(Box.whole(stored.shape), file, 0)])


def lay_out_universal(
    source: Checkpoint,
    training: TrainingState,
    destination: Path,
    *,
    stage: int | None = None,
) -> Target:
    """Plan a universal checkpoint, made from `source`. It can be loaded on any number of ranks
    and, if `stage` is None, with stages 1 to 3.

    If `stage` is set, only engines of this stage load the output. With stage 3, engines before
    DeepSpeed 0.19.2 can load it too.

    Raises:
        BadRequest: the stage is not 1, 2 or 3, or there are no param groups, so that the trained
            parameters are unknown.
        Unsupported: the source has experts, or state that DeepSpeed's loader would reject as
            damaged.
        BadFile: a parameter or a role has a name that cannot be a file name.
    """
    if stage not in (None, 1, 2, 3):
        raise BadRequest(
            f"a universal checkpoint is for stage 1, 2 or 3, not {stage}; choose one of these"
        )
    training = training.with_counted_steps()
    contents = contents_of(source, training, stage)
    tag = _tag(source, training)
    files = _Files(tag)
    _add_parameters(files, contents, source_experts(source), bare=stage == 3)
    _add_optimizer(files, source, training, contents)
    client, unwritable = _client(source, training)
    _add_models(files, source, training, contents, client, stage)
    plans, file_notes = _files_next_to_tag(source)
    plans[LATEST[1]] = file_of_bytes(tag.encode())
    plans |= files.plans
    checkpoint = Checkpoint(
        root=destination,
        tensors=files.tensors,
        origin=Origin("universal", destination, step=training.steps, tag=tag),
        aliases=source.aliases,
        files={name: plan.size for name, plan in plans.items()},
    )
    dropped = (*contents.dropped, *_dropped(source, training, unwritable))
    native = source.native
    parallel = len(native.mp_shards) if isinstance(native, DeepSpeedNative) else 1
    notes = (*notes_of(contents, training, stage, model_parallel=parallel), *file_notes)
    return Target(checkpoint, plans, notes=notes, carried=files.carried, dropped=dropped)


def _tag(source: Checkpoint, training: TrainingState) -> str:
    """Return the name of the output's tag: the source's tag if DeepSpeed saved the source, else the
    tag that DeepSpeed would use at this step.
    """
    if source_model(source) is not None:
        return source.root.name.removesuffix(SUFFIX) + SUFFIX
    name = source.root.name if training.steps is None else f"global_step{training.steps}"
    return name + SUFFIX


def _add_parameters(
    files: _Files, contents: UniversalContents, experts: StackedExperts, *, bare: bool
) -> None:
    """Plan the files of all parameters: one file for each tensor and one for each `step`. A `step`
    that is not a tensor is pickled as a number.

    Files of AutoEP's experts are marked, so that every rank loads only its block of experts.
    """
    for key, tensor in (*contents.states.items(), *contents.initial_state.items()):
        name = f"{ZERO}/{key.name}/{'fp32' if key.role == 'param' else key.role}.pt"
        stored = new_tensor(_NEW, tensor.dtype, tensor.shape)
        tree: Any = stored
        if key.role != STEP:
            tree = new_tensor(_NEW, tensor.dtype, (tensor.numel,)) if bare else {"param": stored}
            if blocks := experts.blocks(key.name):
                tree = expert_tree(stored, blocks[0].total)
        if key in contents.initial_state:
            files.add_known(name, key, tree, stored, None)
        else:
            files.add(name, tree, {key: stored})
    for parameter, number in contents.steps.items():
        key, name = Key(parameter, STEP), f"{ZERO}/{parameter}/{STEP}.pt"
        if key in contents.states:
            continue
        if number.dtype is None:
            files.add(name, number.value, {})
        else:
            stored = new_tensor(_NEW, number.dtype, ())
            files.add_known(name, key, stored, stored, scalar_bytes(number.value, number.dtype))


def _add_optimizer(
    files: _Files, source: Checkpoint, training: TrainingState, contents: UniversalContents
) -> None:
    step: Any = None
    known = {}
    if contents.steps:
        number = min(contents.steps.values(), key=lambda each: each.value)
        step = number.value
        if number.dtype is not None:
            step = new_tensor(_NEW, number.dtype, ())
            known[_NEW] = scalar_bytes(number.value, number.dtype)
    file, _ = source_optimizer(source)
    files.add(OPTIMIZER_STATE, optimizer_tree(source, training, step), {}, known=known, source=file)


def _add_models(
    files: _Files,
    source: Checkpoint,
    training: TrainingState,
    contents: UniversalContents,
    client: Mapping[str, Any],
    stage: int | None,
) -> None:
    """Plan a model file with the tensors and, unless `stage` is 1 or 2, a second model file without
    tensors for stage 3. Both files have counters and client state.
    """
    model = source_model(source)
    named: dict[str, Key] = {}
    for key in contents.model_file_tensors:
        if named.setdefault(key.name, key) != key:
            raise BadFile(
                f"{source.origin.path}: {named[key.name]} and {key} would have the same name; "
                "rename one of the two"
            )
    whole = {
        key: new_tensor(f"{key.role}:{key.name}", tensor.dtype, tensor.shape)
        for key, tensor in contents.model_file_tensors.items()
    }
    empty = {
        key.name: new_tensor(_EMPTY, training.precision or tensor.dtype, (0,))
        for key, tensor in contents.states.items()
        if key.role == "param"
    }
    kinds = [(MODEL, whole)]
    if stage in (None, 3):
        kinds.append((STAGE_3_MODEL, {}))
    for name, made in kinds:
        weights = empty | {key.name: stored for key, stored in made.items()}
        tree = universal_model_tree(source, training, contents.groups, weights, client)
        files.add(name, tree, made, source=model.file if model else None)


def _client(source: Checkpoint, training: TrainingState) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the client state (what the training program itself saved) that can be
    written, and the names of the values that cannot.
    """
    model = source_model(source)
    file = model.file if model is not None else None
    kept = {key: value for key, value in training.client.items() if is_writable(value, file)}
    return kept, [key for key in training.client if key not in kept]


def _dropped(
    source: Checkpoint, training: TrainingState, unwritable: Sequence[str]
) -> Iterator[Dropped]:
    loose = sorted(key.name for key in source.tensors if key.role == LOOSE)
    if names := ", ".join([*unwritable, *loose][:5]):
        yield Dropped(
            "client", f"{names}: a universal checkpoint cannot store tensors of the client state"
        )
    is_native = source_model(source) is not None
    if not is_native and training.lr_scheduler is not None and schedule_of(training) is None:
        why = "only a DeepSpeed scheduler is carried over: the program loads this one from its file"
        yield Dropped("lr_scheduler", why)


def _files_next_to_tag(source: Checkpoint) -> tuple[dict[str, FilePlan], tuple[str, ...]]:
    """Return the plans for the files next to the tag, and notes. If DeepSpeed saved the source,
    they are copies of the source's files; else they are the model's files such as config.json.
    """
    if source_model(source) is not None:
        plans, notes = run_sidecars(source, same_ranks=False)
        return {n: plan for n, plan in plans.items() if n not in (*LATEST, *_SCRIPTS)}, notes
    return sidecar_files(source), ()


_MANY_RANKS = 1024
_NATIVE = "a native checkpoint (zerotools reshard, or convert --to deepspeed) has no such limits"


def notes_of(
    contents: UniversalContents, training: TrainingState, stage: int | None, *, model_parallel: int
) -> tuple[str, ...]:
    """Return notes that tell the user what DeepSpeed's loaders need; the most important note is
    first.

    `model_parallel` is the number of model-parallel ranks in the source.
    """
    notes = ['the resuming run needs "checkpoint": {"load_universal": true} in its configuration']
    kinds = {"frozen weights": "param", "buffers": "buffer"}
    kept = [
        what
        for what, role in kinds.items()
        if any(key.role == role for key in contents.model_file_tensors)
    ]
    if kept:
        notes.append(
            f"DeepSpeed does not restore {' and '.join(kept)} from a universal checkpoint: the "
            f"resuming run must load them from elsewhere before it resumes; {_NATIVE}"
        )
    if model_parallel > 1:
        notes.append(
            f"the {model_parallel} model-parallel ranks are merged: the output has no division "
            "among tensor or pipeline ranks, so it is for a run without model parallelism"
        )
    if len(contents.groups) > 1:
        notes.append(
            f"the resuming run must have the same {len(contents.groups)} param groups in the same "
            "order"
        )
    if contents.initial_state:
        names = list(dict.fromkeys(key.name for key in contents.initial_state))
        some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
        notes.append(f"{some}: no state yet; zeros, the initial value, are written")
    is_muons = any(uses_muon(group.options) for group in training.groups)
    if is_muons:
        notes.append(
            "DeepSpeed 0.19.8 does not resume Muon from a universal checkpoint: stages 1 and 2 cut "
            "the momenta into partitions, and Muon takes them for whole matrices unless the "
            f"optimizer is offloaded; stage 3 looks for Adam's state; {_NATIVE}"
        )
    if stage != 3:
        notes += _of_zero12(contents, training)
    if stage in (None, 3) and not is_muons:
        notes += _of_stage_3(contents, training)
    if mixed := _other_types(contents):
        notes.append(f"DeepSpeed casts {', '.join(mixed)} to the type of the masters; {_NATIVE}")
    return tuple(notes)


def _of_zero12(contents: UniversalContents, training: TrainingState) -> Iterator[str]:
    """Yield notes for the user on loading the output at stage 1 or 2."""
    zero = (training.ds_config or {}).get("zero_optimization")
    if isinstance(zero, Mapping) and zero.get(ROUND_ROBIN) is True:
        yield (
            f"the resuming run must leave {ROUND_ROBIN} out, because with it DeepSpeed's loader "
            f"swaps weights; {_NATIVE}"
        )
    limits = {
        number: limit
        for number, group in enumerate(contents.groups)
        if group and (limit := max_ranks(group)) < _MANY_RANKS
    }
    if limits:
        number = min(limits, key=limits.__getitem__)
        yield (
            "at stages 1 and 2 DeepSpeed's loader fails on a rank without a part of a group: at "
            f"most {limits[number]} ranks can share group {number}; {_NATIVE}"
        )


def max_ranks(group: Mapping[str, tuple[int, ...]]) -> int:
    """Return the largest number of ranks with which, at stages 1 and 2, every rank has at least one
    element of the group's parameters.
    """
    total = sum(map(prod, group.values()))
    fits = (
        (ranks - 1) * partition_size(total, ranks) < total for ranks in range(1, _MANY_RANKS + 1)
    )
    return next((ranks for ranks, fit in enumerate(fits) if not fit), _MANY_RANKS)


def _of_stage_3(contents: UniversalContents, training: TrainingState) -> Iterator[str]:
    missing = sorted(set(MOMENTS) - contents.roles)
    if missing or not contents.steps:
        lacks = ", ".join([*missing, *([] if contents.steps else [STEP])])
        yield (
            "stage 3 does not load the output: DeepSpeed's loader expects the state of Adam, but "
            f"the output has no {lacks}; {_NATIVE}"
        )
        return
    if rest := sorted(contents.roles - set(MOMENTS)):
        yield (
            f"stage 3 does not load {', '.join(rest)}, so training does not continue correctly; "
            f"{_NATIVE}"
        )
    alike = common_options(training.groups)
    options = {key for group in training.groups for key in group.options}
    if differing := sorted(options - alike.keys()):
        yield (
            "stage 3 loads the options of only one group, so options that differ between groups "
            f"({', '.join(differing)}) keep the values that the resuming run sets"
        )
    steps = {value for group in contents.groups for value in contents.steps_of(group)}
    if len(steps) > 1:
        yield (
            f"stage 3 gives every group the step {min(steps):g}, although groups are at steps "
            f"{sorted(steps)}; {_NATIVE}"
        )
    is_tensor = any(number.dtype is not None for number in contents.steps.values())
    if is_tensor and len(contents.groups) > 1:
        yield (
            "at stage 3, all sub-groups share one step tensor, so in the resumed run a torch "
            f"optimizer counts several steps for each step of the run; {_NATIVE}"
        )


def _other_types(contents: UniversalContents) -> list[str]:
    """Return the roles of optimizer state with a dtype that differs from the master's dtype."""
    found = {
        key.role
        for key, tensor in contents.states.items()
        if key.role != STEP and tensor.dtype != contents.states[Key(key.name, "param")].dtype
    }
    return sorted(found)
