"""Check that a job can continue from a checkpoint of another program: that it is complete, and that
its model and its optimizer are those of the job. Note values that differ or are not known.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import BFLOAT16, FLOAT16
from zerotools.core.errors import BadRequest
from zerotools.formats.torch_optimizers import STATE_ROLE, WEIGHT_ROLES, optimizer_class_of
from zerotools.ops.execution.plan_copies import prove_source
from zerotools.ops.resume_from_other_program.foreign_run import ForeignRun
from zerotools.ops.resume_from_other_program.rename_to_job import WantedModel

_LISTED = 3
_KINDS = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd", "Adafactor": "adafactor"}
"""The optimizers of jobs, keyed by their class names in torch."""
STATE_ROLES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "adamw": (("exp_avg", "exp_avg_sq"),),
    "adam": (("exp_avg", "exp_avg_sq"),),
    "sgd": (("momentum_buffer",), ()),
    "adafactor": (("row_var", "col_var"), ("variance",)),
}
"""The state tensors that each optimizer may keep for a parameter, without `step`."""


@dataclass(frozen=True)
class FoundState:
    """The facts about the checkpoint's optimizer state that the job needs to load it.

    `kind` is the name of the optimizer in job files. `fresh` are parameters without state, because
    the optimizer never updated them.
    """

    kind: str
    fresh: tuple[str, ...] = ()


def check_weights(run: ForeignRun, wanted: WantedModel) -> None:
    """Check that the checkpoint has the weights of the job's model.

    Raises:
        BadRequest: a weight is missing, is not in the job's model, or has another shape. The
            message names the first ones.
    """
    tensors = run.checkpoint.tensors
    weights = {name: tensors[key] for name, key in weights_of(run).items()}
    needed = {**wanted.parameters, **wanted.buffers}
    known = {*wanted.aliases, *run.training.unnamed}
    lost = [name for name in needed if name not in weights]
    more = [
        name
        for name in weights
        if name not in needed and name not in known and weights[name].dtype.is_float
    ]
    if lost or more:
        said = [f"it lacks {_listed(lost)}"] if lost else []
        said += [f"it has {_listed(more)}, which the job's model does not have"] if more else []
        raise BadRequest(
            f"resume_from = {run.path}: is a checkpoint of another model: "
            f"{', and '.join(said)}; name a checkpoint of the job's model"
        )
    _check_shapes(run, {Key(name, ""): weights[name] for name in needed}, needed)


def _check_shapes(
    run: ForeignRun, tensors: Mapping[Key, Tensor], wanted: Mapping[str, tuple[int, ...]]
) -> None:
    for key, tensor in tensors.items():
        if tensor.shape != wanted[key.name]:
            what = f"{key.name} ({key.role})" if key.role else key.name
            raise BadRequest(
                f"resume_from = {run.path}: {what} has shape {list(tensor.shape)} there, but shape "
                f"{list(wanted[key.name])} in the job's model: it is a checkpoint of another "
                "model; name a checkpoint of the job's model"
            )


def check_complete(run: ForeignRun) -> None:
    """Check, before anything is loaded, that all weights and the whole optimizer state are in the
    files.

    Raises:
        BadFile: a tensor has a hole, or a chunk outside its file.
    """
    for key, tensor in run.checkpoint.tensors.items():
        if key.role != STATE_ROLE:
            prove_source(key, tensor, run.checkpoint)


def weights_of(run: ForeignRun) -> dict[str, Key]:
    """Return the key of the tensor with the exact value of each weight, keyed by the weight's name:
    the fp32 master if there is one."""
    found: dict[str, Key] = {}
    for role in WEIGHT_ROLES:
        for key in run.checkpoint.tensors:
            if key.role == role:
                found.setdefault(key.name, key)
    return found


def check_state(run: ForeignRun, wanted: WantedModel, optimizer: str) -> FoundState:
    """Check that the job's `optimizer` can load the optimizer state, and return the facts about it.

    Raises:
        BadRequest: the state is that of another optimizer, or lacks parameters that the job trains.
    """
    kind = kind_of(run)
    if kind == "adamw" and optimizer == "adam" and not _decays(run):
        kind = optimizer
    if kind != optimizer or kind not in STATE_ROLES:
        known = kind in STATE_ROLES
        do = f'set train.optimizer = "{kind}"' if known else "jobs do not have this optimizer"
        raise BadRequest(
            f'train.optimizer = "{optimizer}": resume_from = {run.path} was trained with {kind}; '
            + do
        )
    state: dict[str, dict[str, Tensor]] = {name: {} for name in wanted.parameters}
    for key, tensor in run.checkpoint.tensors.items():
        if key.name in state and key.role not in (*WEIGHT_ROLES, "step"):
            state[key.name][key.role] = tensor
    grouped = {name for group in run.training.groups for name in group.params}
    untrained = [n for n, roles in state.items() if n not in grouped and (grouped or not roles)]
    if untrained:
        raise BadRequest(
            f"resume_from = {run.path}: its optimizer did not train {_listed(untrained)}, which "
            "the job trains, so the optimizer state is missing"
        )
    _check_roles(run, kind, state)
    if kind != "adafactor":
        tensors = {Key(n, role): t for n, roles in state.items() for role, t in roles.items()}
        _check_shapes(run, {k: t for k, t in tensors.items() if t.shape}, wanted.parameters)
    return FoundState(kind, tuple(name for name, roles in state.items() if not roles))


def check_for_deepspeed(
    run: ForeignRun, stage: int, world_size: int, groups: Sequence[tuple[str, ...]]
) -> None:
    """Check that DeepSpeed can load the checkpoint into a job of `stage` on `world_size` ranks.

    DeepSpeed loads only its own files. It finds the state of a parameter by the parameter's
    position in the `groups`.

    Raises:
        BadRequest: DeepSpeed cannot load the checkpoint.
    """
    where, origin = f"resume_from = {run.path}", run.checkpoint.origin
    if not origin.stage or origin.tag is None:
        raise BadRequest(
            f'engine = "deepspeed": {where} is {run.title}, but DeepSpeed loads only its files '
            'of stages 1 to 3; set engine = "torch"'
        )
    if (origin.stage, origin.world_size) != (stage, world_size):
        raise BadRequest(
            f"{where}: was saved at world size {origin.world_size} and stage {origin.stage}, but "
            f"the job has world size {world_size} and stage {stage}, and DeepSpeed does not change "
            f"them; type zerotools reshard {shlex.quote(str(run.directory))} OUT "
            f'--world-size {world_size} --stage {stage}, or set engine = "torch"'
        )
    saved = [group.params for group in run.training.groups if group.params]
    if saved != list(groups):
        raise BadRequest(
            f"{where}: its param groups have {_sizes(saved)} parameters, but those of the job have "
            f"{_sizes(groups)}, or the order of parameters differs. DeepSpeed needs equal "
            'groups in the same order; set engine = "torch"'
        )


def _sizes(groups: Sequence[tuple[str, ...]]) -> str:
    return " and ".join(str(len(group)) for group in groups)


def kind_of(run: ForeignRun) -> str:
    """Return the name that the checkpoint's optimizer has in job files, or the name of its class if
    jobs do not support it."""
    roles = {key.role for key in run.checkpoint.tensors if key.role not in WEIGHT_ROLES}
    if roles & {"row_var", "variance"}:
        return "adafactor"
    found = optimizer_class_of(run.training, roles)
    if found is None:
        if roles == {"momentum_buffer"}:
            return "sgd"
        return run.training.optimizer or f"an optimizer that keeps {_listed(sorted(roles))}"
    if found.name == "Adam" and not _decays(run):
        return "adamw"  # the two differ in how they decay weights alone
    return _KINDS.get(found.name, found.name)


def _decays(run: ForeignRun) -> bool:
    return any(group.options.get("weight_decay") for group in run.training.groups)


def _check_roles(run: ForeignRun, kind: str, state: Mapping[str, Mapping[str, Tensor]]) -> None:
    known = STATE_ROLES[kind]
    for name, roles in state.items():
        if roles and set(roles) not in map(set, known):
            raise BadRequest(
                f"resume_from = {run.path}: its optimizer stores {_listed(sorted(roles))} for "
                f'{name}, but "{kind}" stores '
                f"{' or '.join(', '.join(each) for each in known if each)}; set "
                "train.optimizer to the optimizer of that run (amsgrad is not supported)"
            )
    for group in run.training.groups:
        for option in ("amsgrad", "maximize", "nesterov", "dampening"):
            if group.options.get(option):
                raise BadRequest(
                    f"resume_from = {run.path}: its optimizer has {option} = "
                    f"{group.options[option]}, which the job's optimizer does not have"
                )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


OPTIONS_RESTORED = (
    "DeepSpeed restores the options of the param groups with their state: betas, eps and weight "
    "decay are those of the checkpoint"
)


@dataclass(frozen=True)
class JobOptimizer:
    """The hyperparameters of the job's optimizer. A value is None if the optimizer does not have
    it.

    The parameters in `decayed` have the weight decay `weight_decay`, and all others have 0. `lr` is
    the learning rate of the next step; None if the number of steps is not known yet.
    """

    lr: float | None
    weight_decay: float
    decayed: frozenset[str]
    betas: tuple[float, ...] | None = None
    eps: float | None = None
    momentum: float | None = None


def unknown_values(run: ForeignRun) -> Iterator[str]:
    """Yield sentences about values of the run that its checkpoint does not record."""
    yield (
        f"{run.path} is a checkpoint of another program ({run.title}) at step {run.step}; it does "
        "not record the order of the data: the job begins at the first sequence of its order, "
        "and may repeat data"
    )
    yield (
        "the random number state is not carried over: the job seeds it from seed and step "
        f"{run.step}"
    )


def optimizer_differences(
    run: ForeignRun, state: FoundState, job: JobOptimizer, precision: str
) -> Iterator[str]:
    """Yield a sentence about the job's learning rate, and sentences about hyperparameters that
    differ between the checkpoint and the job. The job uses its own values."""
    groups = run.training.groups
    rates = list(dict.fromkeys(g.options["lr"] for g in groups if _is_number(g.options.get("lr"))))
    followed = "" if run.training.lr_scheduler is None else ", and its scheduler is not used"
    said = f": in the checkpoint it was {_numbers(rates)}{followed}" if rates else ""
    now = "" if job.lr is None else f", {job.lr:g}"
    yield (
        f"the learning rate is that of the job's schedule after {count_text(run.step, 'step')}"
        f"{now}{said}"
    )
    for option in ("betas", "eps", "momentum"):
        mine = getattr(job, option)
        theirs = [g.options[option] for g in groups if option in g.options]
        other = next((each for each in theirs if not _same(each, mine)), None)
        if mine is not None and other is not None:
            yield f"train.{option} is {_shown(mine)} and was {_shown(other)} in {run.path}"
    yield from _decay(run, job)
    if state.fresh:
        yield (
            f"{count_text(len(state.fresh), 'parameter')} had no update yet and begin with empty "
            f"optimizer state, the first: {state.fresh[0]}"
        )
    yield from _precision(run, precision)


def _decay(run: ForeignRun, job: JobOptimizer) -> Iterator[str]:
    theirs = {
        name: float(group.options["weight_decay"])
        for group in run.training.groups
        if _is_number(group.options.get("weight_decay"))
        for name in group.params
    }
    mine = {name: job.weight_decay if name in job.decayed else 0.0 for name in theirs}
    other = [name for name in theirs if not _same(theirs[name], mine[name])]
    if other:
        first = other[0]
        yield (
            f"weight decay differs for {count_text(len(other), 'parameter')}: {first} has "
            f"{mine[first]:g} and had {theirs[first]:g} in {run.path}"
        )


def _precision(run: ForeignRun, precision: str) -> Iterator[str]:
    exact = (run.checkpoint.tensors[key] for key in weights_of(run).values())
    halves = [tensor for tensor in exact if tensor.dtype in (BFLOAT16, FLOAT16)]
    if halves:
        yield (
            f"{count_text(len(halves), 'weight')} of {run.path} are in 16 bits, without fp32 "
            "masters: the job's masters begin with these values"
        )
    there = run.training.precision
    short = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    before = None if there is None else short.get(there.name)
    if before is not None and before != precision:
        yield f"train.precision is {precision}, and {run.path} was trained in {before}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Sequence) and isinstance(other, Sequence):
        return len(one) == len(other) and all(map(_same, one, other))
    if _is_number(one) and _is_number(other):
        return bool(abs(one - other) <= 1e-9 * max(abs(one), abs(other)))
    return bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(values: Sequence[float]) -> str:
    return " and ".join(f"{value:g}" for value in values)


def _shown(value: Any) -> str:
    return ", ".join(f"{each:g}" for each in value) if isinstance(value, Sequence) else f"{value:g}"
