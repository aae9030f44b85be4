"""Check, from values that files record, that they are from the same save and have the right names.

All ranks of a save have the same optimizer step, param group options, loss scale and parameters.
The step of the optimizer is the number of steps in the model file minus the skipped steps. If
DeepSpeed before 0.14 began the run, the optimizer's step is one higher, because creating its state
counted as a step. It stays one higher if a later version continues the run.

The name of the folder inside a torch archive is checked too: torch names it after the file that it
writes, or `archive` if it writes to an open file.

Source: torch `serialization.py` (`_open_zipfile_writer_file`), caffe2 `inline_container.cc`;
DeepSpeed `runtime/engine.py`: `_take_model_step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Problem, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import chunk_locations
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.partitioning.kept_for_writer import files_of_all_ranks, native_of
from zerotools.formats.deepspeed.partitioning.pair_masters_with_weights import weight_pairs
from zerotools.formats.deepspeed.schema.loss_scaler import counters_of
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3, OptimStates, version_of
from zerotools.formats.deepspeed.schema.state_dict_keys import (
    GLOBAL_STEPS,
    LAST_RATES,
    LOSS_SCALER,
    LR_SCHEDULER,
    PARAMS,
    PARTITION_COUNT,
    SKIPPED_STEPS,
    numel_of,
    slice_mappings,
)
from zerotools.formats.deepspeed.schema.tag_file_names import identity_of, is_rank_file
from zerotools.io.files.tolerated_damage import is_tolerated, raise_or_record
from zerotools.io.numeric.scalar_tensors import read_scalar
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tree_tensors import as_tensor

STEP = "step"
_LOST = object()
# DeepSpeed before 0.14 makes one step of the optimizer to create its state.
_STEPS_ONCE_FOR_EACH = (0, 14)


def step_of(optim: OptimStates) -> float | None:
    """Return the step of the optimizer, from the first param group that counts steps.

    Return None if no group counts steps, or if the step is lost and damage is tolerated.
    """
    try:
        return _saved_step(optim)
    except BadFile as error:
        raise_or_record(optim.file.path, error)
        return None


def _saved_step(optim: OptimStates) -> float | None:
    for scalars in optim.scalars:
        value = scalars.get(STEP)
        stored = as_tensor(value)
        if stored is not None and stored.shape == ():
            return float(read_scalar(optim.file.root, optim.file.tensor(stored)).value)
        if isinstance(value, int | float):
            return float(value)
    return None


def updates_of(model: ModelStates) -> int | None:
    """Return the number of steps in which the run changed its weights, or None if the model file
    does not record it. A recorded 0 gives None too, because conversion from files without a count
    writes 0.
    """
    steps = model.global_steps
    return None if not steps else steps - (model.fields.maybe(SKIPPED_STEPS, int) or 0)


def could_be_of(step: float | None, model: ModelStates) -> bool:
    """Return whether an optimizer with `step` steps can belong to the run that wrote the model
    file. Return True too if the steps of the optimizer or of the run are unknown.
    """
    updates = updates_of(model)
    return step is None or updates is None or step - updates in (0, 1)


def extra_step_note(model: ModelStates, optim: OptimStates) -> str | None:
    """Return a note if the optimizer counts one step more than the run, although the DeepSpeed
    version in the files counts both equally: an older version began the run, or the files are of
    two saves.
    """
    step, updates = step_of(optim), updates_of(model)
    if step is None or updates is None or step != updates + 1 or _steps_first(model):
        return None
    return (
        f"the optimizer has counted {step:g} steps, but the run only {updates}. This is normal if "
        f"DeepSpeed before 0.14 began the run; if not, {model.file.name} is from the previous save"
    )


def _steps_first(model: ModelStates) -> bool:
    return version_of(model.version or "") < _STEPS_ONCE_FOR_EACH


def compare_optim_states(optim_states: Sequence[OptimStates | None]) -> Iterator[Problem]:
    """Yield a problem for each rank with an optimizer file that is not from the same save as the
    first rank's optimizer file.
    """
    present = [optim for optim in optim_states if optim is not None]
    said = {optim.file.name: dict(_values_of_save(optim)) for optim in present}
    for optim in present[1:]:
        first, own = said[present[0].file.name], said[optim.file.name]
        for what in first.keys() | own.keys():
            values = (first.get(what), own.get(what))
            if values[0] != values[1] and _LOST not in values:
                yield Problem(
                    f"{optim.file.path} is from another save than {present[0].file.name}: {what} "
                    f"is {own.get(what)} in the first file and {first.get(what)} in the second; "
                    "take a checkpoint with all files from one save",
                    optim.file.name,
                    prevents_output=True,
                )
                break


def _values_of_save(optim: OptimStates) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the values in an optimizer file that must be equal on all ranks of one
    save.
    """
    what = "the optimizer's step"
    try:
        yield what, _saved_step(optim)
    except BadFile as error:
        raise_or_record(optim.file.path, error)
        yield what, _LOST
    yield PARTITION_COUNT, optim.partition_count
    for number, group in enumerate(optim.param_groups or ()):
        for name, value in group.items():
            if isinstance(value, int | float) and name != PARAMS:
                yield f"{name} of param group {number}", value
    for name, value in counters_of(optim.fields.tree.get(LOSS_SCALER)).items():
        yield f"{name} of the loss scaler", value


def compare_model(model: ModelStates, optim: OptimStates) -> Iterator[Problem]:
    """Yield a problem if the model file and its optimizer files are not from the same save.

    An optimizer with fewer steps than the run may have been restarted during the run. At stages 1
    and 2, this problem does not prevent an output, because the comparison of weights with masters
    finds files from different saves.
    """
    step, updates = step_of(optim), updates_of(model)
    if step is None or updates is None:
        return
    if could_be_of(step, model):
        if step != updates and (rates := _other_rates(model, optim)) is not None:
            yield _of_another_save(model, optim, *rates)
        return
    prevents_output = step > updates or optim.kind == STAGE_3
    found = f"it records {updates} updates", f"the optimizer has made {step:g}"
    yield _of_another_save(model, optim, *found, prevents_output=prevents_output)


def _of_another_save(
    model: ModelStates, optim: OptimStates, there: str, here: str, *, prevents_output: bool = True
) -> Problem:
    return Problem(
        f"{model.file.path} is from another save than {optim.file.name}: {there}, but {here}; "
        "take a checkpoint with all files from one save",
        model.file.name if prevents_output else None,
        prevents_output=prevents_output,
    )


def _other_rates(model: ModelStates, optim: OptimStates) -> tuple[str, str] | None:
    """Return two phrases, with the learning rates of the schedule and of the optimizer; None if the
    rates are equal or unknown.
    """
    schedule = model.fields.tree.get(LR_SCHEDULER)
    last = schedule.get(LAST_RATES) if isinstance(schedule, dict) else None
    own = [group.get("lr") for group in optim.param_groups or ()]
    if not isinstance(last, list) or len(last) != len(own) or last == own:
        return None
    if any(type(rate) is not float for rate in (*last, *own)):
        return None
    return f"its schedule has the learning rates {last}", f"the optimizer has {own}"


def compare_mp_ranks(models: Sequence[ModelStates]) -> Iterator[Problem]:
    """Yield a problem for each model-parallel rank with a model file that is not from the same save
    as the first rank's model file."""
    known = [m for m in models if GLOBAL_STEPS in m.fields or not is_tolerated()]
    for model in known[1:]:
        if (own := model.fields.tree.get(GLOBAL_STEPS)) != (
            first := known[0].fields.tree.get(GLOBAL_STEPS)
        ):
            yield Problem(
                f"{model.file.path} is from another save than {known[0].file.name}: the first is "
                f"of step {own}, the second of step {first}; take a checkpoint with all files "
                "from one save",
                model.file.name,
                prevents_output=True,
            )


def compare_parameters(
    models: Sequence[ModelStates], optim_states: Sequence[OptimStates | None]
) -> Iterator[Problem]:
    """Yield a problem for each file of one model-parallel rank that lists other parameters than the
    first model file of this rank.
    """
    first = models[0]
    for model in models[1:]:
        if (model.groups, model.frozen_shapes) != (first.groups, first.frozen_shapes):
            yield _of_other_parameters(model.file, first.file, _listed(model), _listed(first))
    listed = {name: prod(shape) for group in first.groups or () for name, shape in group.items()}
    for optim in (each for each in optim_states if each is not None and listed):
        placed = {
            str(name): numel_of(place)
            for mapping in slice_mappings(optim.fields.tree)
            for name, place in mapping.items()
        }
        odd = {name: count for name, count in placed.items() if count > listed.get(name, -1)}
        if odd:
            yield _of_other_parameters(optim.file, first.file, odd, listed)


def _listed(model: ModelStates) -> dict[str, tuple[int, ...]]:
    every = (*(model.groups or ()), model.frozen_shapes)
    return {name: shape for group in every for name, shape in group.items()}


def _of_other_parameters(
    file: TorchFile, first: TorchFile, own: Mapping[str, Any], known: Mapping[str, Any]
) -> Problem:
    names = dict.fromkeys((*own, *known))
    odd = [name for name in names if own.get(name) != known.get(name) and name in own]
    odd = odd or [name for name in names if own.get(name) != known.get(name)] or [*names]
    what = f"{len(odd)} parameters (such as {odd[0]})" if len(odd) > 1 else odd[0]
    return Problem(
        f"{file.path} is from another save than {first.name}: the two files do not agree on "
        f"{what}; take a checkpoint with all files from one save",
        file.name,
        prevents_output=True,
    )


def misnamed_files(files: Iterable[TorchFile]) -> Iterator[Problem]:
    """Yield a problem for each file that torch saved under the name of another rank, layer or
    expert.
    """
    for file in files:
        folder = saved_as(file)
        own, saved = identity_of(file.path.name), _saved_identity(folder)
        if own is not None and saved is not None and own != saved:
            yield Problem(
                f"{file.path} was saved as {folder}.pt: it belongs to another rank or layer; put "
                "the right file there",
                file.name,
                prevents_output=True,
            )


def saved_as(file: TorchFile) -> str | None:
    """Return the name under which torch wrote the file: the name of the folder inside the
    archive.

    Return None if the file is not a zip archive.
    """
    record = file.records.get("data.pkl")
    return None if record is None else record.name.partition("/")[0]


def records_its_name(file: TorchFile) -> bool:
    """Return whether a file records its own rank, layer or expert, so that `misnamed_files` can
    detect a wrong file name.
    """
    return _saved_identity(saved_as(file)) is not None


def _saved_identity(folder: str | None) -> tuple[str, ...] | None:
    return None if folder is None else identity_of(f"{folder}.pt")


def _is_same(first: TorchFile, other: TorchFile) -> bool:
    from filecmp import cmp  # for files from before torch 1.6 alone

    return cmp(first.path, other.path, shallow=False)


def duplicated_files(files: Iterable[TorchFile]) -> Iterator[Problem]:
    """Yield a problem for each rank with a file that has exactly the bytes of another rank's file.

    Archives that record their rank are not checked, because two partitions of constant values may
    be equal without an error. Archives are compared by their checksums. Files from before torch 1.6
    have no checksums and are compared byte by byte.
    """
    known: dict[tuple[int | str, ...], TorchFile] = {}
    for file in files:
        if _saved_identity(saved_as(file)) is not None:
            continue
        mark = _fingerprint(file)
        first = known.setdefault(mark, file) if mark else file
        if first is not file and (file.records or _is_same(first, file)):
            yield Problem(
                f"{file.path} has the same contents as {first.name}: it belongs to another rank; "
                "put the right file there",
                file.name,
                prevents_output=True,
            )


def _fingerprint(file: TorchFile) -> tuple[int | str, ...]:
    """Return the checksums of a file's data, which differ between the files of two ranks; an empty
    tuple if all checksums are equal.

    Files from before torch 1.6 have no checksums. For such a file, return the keys of its storages,
    which are memory addresses in the rank's process.
    """
    if not file.records:
        return file.storages
    crcs = [r.crc for name, r in sorted(file.records.items()) if name.startswith("data/")]
    return tuple(crcs) if len(set(crcs)) > 1 else ()


def files_of_one_save(source: Checkpoint) -> frozenset[str]:
    """Return the names, relative to `source.root`, of the files that the checks prove to be from
    one save.

    - A model file records its step.
    - An optimizer file records its step if the optimizer counts steps (SGD and Lion do not). It
      records its rank if torch received the path of the file: then the folder inside the archive
      has the name of the file. Masters that agree with the weights in a model file are a proof too.
    - Layer and expert files record neither step nor rank, but hold weights that can be compared
      with masters.

    The checks prove nothing in three cases:

    - At stage 3, the files of an optimizer that counts no steps may be from any save.
    - Archives that torch wrote to an open file (their folder is `archive`) may be from any rank.
    - Without weights to compare with the masters, the files of two runs that saved the same step
      under one tag cannot be distinguished.
    """
    found: set[str] = set()
    for _, master, weight in weight_pairs(source):
        if master.numel:
            found |= {*_files_of(master), *_files_of(weight)}
    for mp_shard in native_of(source).mp_shards:
        found |= {*_models(source, mp_shard), *_optimizers(mp_shard)}
    return frozenset(found)


def _files_of(tensor: Tensor) -> set[str]:
    return {file for file, _ in chunk_locations(tensor)}


def _models(source: Checkpoint, mp_shard: MpShard) -> Iterator[str]:
    """Yield the names of the model files that record a step, so that the steps can be compared.

    At stage 3, a model file with partitions of frozen parameters must also record its rank.
    """
    first = mp_shard.model.file
    if not is_rank_file(first.name):
        yield first.name
        return
    for name in files_of_all_ranks(source, first.name):
        if not mp_shard.model.frozen_shapes or records_its_name(TorchFile.open(first.root, name)):
            yield name


def _optimizers(mp_shard: MpShard) -> Iterator[str]:
    for optim in mp_shard.optim_states:
        if optim is None or not records_its_name(optim.file):
            continue
        says_step = step_of(optim) is not None and updates_of(mp_shard.model) is not None
        says_step = says_step and extra_step_note(mp_shard.model, optim) is None
        if says_step or not any(partition.numel for partition in optim.masters):
            yield optim.file.name
