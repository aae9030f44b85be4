"""Compare the training state of two checkpoints: counters, param groups, loss scaler, config.json.

A value that only one checkpoint records does not count as a difference, because some formats record
more values than others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.training_state import ParamGroup, TrainingState
from zerotools.io.files.read_json import read_json
from zerotools.io.huggingface.config_json import LARGEST_CONFIG
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.ops.comparison.diff_result import RunComparison, RunDifference
from zerotools.ops.comparison.pair_tensors import Side
from zerotools.ops.inspection.training_summary import json_value, scaler_to_json

_ABSENT = object()
_OF_THE_WRITER = ("_name_or_path", "transformers_version")
"""Keys of config.json that describe the program that wrote it, and not the model."""
_TYPES = ("dtype", "torch_dtype")
"""Keys of config.json that name the type of the weights."""
_DEEPEST = 8


def compare_runs(
    a: Side,
    b: Side,
    ours: TrainingState,
    theirs: TrainingState,
    compared: Collection[Key],
    *,
    is_of_sums: bool = False,
) -> RunComparison:
    """Compare the training values of both checkpoints, except numbers in `compared`, which were
    compared as tensors. `is_of_sums` says that an adapter was added to B; then the dtype in
    config.json is not compared.

    Raises:
        BadFile: a number in the optimizer state, or config.json, cannot be read.
    """
    left_out = (*_OF_THE_WRITER, *(_TYPES if is_of_sums else ()))
    of_a, of_b = (
        _recorded_values(c.checkpoint, run, left_out) for c, run in ((a, ours), (b, theirs))
    )
    found = [*_leaves(of_a, of_b)]
    found += _group_points(_groups(a, ours), _groups(b, theirs))
    found += _scalar_points(_scalars(a, ours, compared), _scalars(b, theirs, compared))
    return RunComparison(
        tuple(each for each in found if _ABSENT not in (each.a, each.b)),
        tuple(dict.fromkeys(each.what for each in found if each.b is _ABSENT)),
        tuple(dict.fromkeys(each.what for each in found if each.a is _ABSENT)),
    )


def _recorded_values(
    checkpoint: Checkpoint, training: TrainingState, left_out: Collection[str]
) -> dict[str, Any]:
    """Return the training values that the checkpoint records, under names that do not depend on the
    format. The keys `left_out` of config.json are omitted."""
    step = checkpoint.origin.step if training.steps is None else training.steps
    is_run = bool(training.groups or training.optimizer)
    config = _without(_config(checkpoint), left_out)
    said = {
        "step": step,
        "skipped steps": training.skipped,
        "samples": training.samples,
        "precision": training.precision if is_run else None,
        "optimizer": training.optimizer,
        "loss scaler": _scaler(training),
        "lr scheduler": training.lr_scheduler,
        "client": training.client or None,
        "ds_config": training.ds_config,
        CONFIG: config,
    }
    return {what: json_value(value) for what, value in said.items() if value is not None}


def _scaler(training: TrainingState) -> dict[str, Any] | None:
    """Return the numbers of the loss scaler. Return None if the run has no loss scaler, or one that
    multiplies by 1.
    """
    scaler = scaler_to_json(training.loss_scale)
    return None if scaler is None else {k: v for k, v in scaler.items() if k != "class"}


def _config(checkpoint: Checkpoint) -> dict[str, Any] | None:
    path = checkpoint.model_sidecars.get(CONFIG)
    if path is None:
        return None
    try:
        config = read_json(path, LARGEST_CONFIG)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise BadFile(
            f"{path} is not valid JSON; replace it by the config.json of the model"
        ) from None
    if not isinstance(config, dict):
        return None
    return config


def _without(config: dict[str, Any] | None, left_out: Collection[str]) -> dict[str, Any] | None:
    """Return a config without the keys `left_out`, also in the nested configs of models."""
    if config is None:
        return None
    return {
        key: _without(value, left_out) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in left_out
    }


def _leaves(ours: Any, theirs: Any, path: str = "", depth: int = 0) -> Iterator[RunDifference]:
    """Yield the differences between two trees of plain values. A subtree that only one tree has is
    one difference."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and depth < _DEEPEST:
        for key in dict.fromkeys((*ours, *theirs)):
            where = f"{path}.{key}" if path else str(key)
            left, right = ours.get(key, _ABSENT), theirs.get(key, _ABSENT)
            yield from _leaves(left, right, where, depth + 1)
    elif ours is _ABSENT or theirs is _ABSENT or ours != theirs:
        yield RunDifference(path, ours, theirs)


def _groups(side: Side, training: TrainingState) -> list[ParamGroup]:
    """Return the param groups with the parameter names that the comparison uses. Tied parameters
    share one name."""
    aliases = side.checkpoint.aliases
    return [
        ParamGroup(
            tuple(side.new_name(aliases.get(name, name)) for name in group.params),
            json_value(group.options),
        )
        for group in training.groups
    ]


def _group_points(ours: list[ParamGroup], theirs: list[ParamGroup]) -> Iterator[RunDifference]:
    """Yield the differences between the param-group options of the parameters. Parameters with the
    same difference are one entry."""
    if not ours or not theirs:
        if ours or theirs:
            what = "param groups"
            yield RunDifference(what, len(ours) or _ABSENT, len(theirs) or _ABSENT)
        return
    if len(ours) != len(theirs):
        yield RunDifference("param groups", len(ours), len(theirs))
    group_of = {name: number for number, group in enumerate(theirs) for name in group.params}
    meeting = Counter(
        (number, group_of[name])
        for number, group in enumerate(ours)
        for name in group.params
        if name in group_of
    )
    if not meeting and len(ours) == len(theirs):  # names that the files do not have
        meeting = Counter({(n, n): len(group.params) for n, group in enumerate(ours)})
    counts: dict[tuple[str, str, str], RunDifference] = {}
    for (left, right), params in meeting.items():
        for point in _leaves(ours[left].options, theirs[right].options):
            key = (point.what, repr(point.a), repr(point.b))
            known = counts.get(key)
            total = params + (known.params or 0 if known is not None else 0)
            counts[key] = RunDifference(point.what, point.a, point.b, total)
    yield from counts.values()


def _scalars(
    side: Side, training: TrainingState, compared: Collection[Key]
) -> dict[Key, Callable[[], Any]]:
    """Return functions that read the numbers in the optimizer state, keyed by the names of the
    comparison, without those in `compared`."""
    aliases = side.checkpoint.aliases

    def value_of(key: Key) -> Callable[[], Any]:
        return lambda: json_value(training.scalars[key].value)

    named = {
        Key(side.new_name(aliases.get(key.name, key.name)), key.role): value_of(key)
        for key in training.scalars
    }
    return {key: read for key, read in named.items() if key not in compared}


def _scalar_points(
    ours: Mapping[Key, Callable[[], Any]], theirs: Mapping[Key, Callable[[], Any]]
) -> Iterator[RunDifference]:
    """Yield the differences between numbers. Parameters with the same role and the same two values
    are one entry. A number that only one checkpoint has is left out, because the other may store it
    in another form."""
    counts = Counter((key.role, ours[key](), theirs[key]()) for key in ours if key in theirs)
    for (role, left, right), params in counts.items():
        if left != right:
            yield RunDifference(role, left, right, params)


def training_or_note(
    side: Side, training_of: Callable[[Checkpoint], TrainingState]
) -> tuple[TrainingState, str | None]:
    """Return the training state of a checkpoint and None, or an empty state and the reason why it
    cannot be read."""
    try:
        return training_of(side.checkpoint), None
    except (BadFile, Unsupported) as error:
        return TrainingState(), str(error)
