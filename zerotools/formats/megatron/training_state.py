"""Read the training state of a Megatron checkpoint: iteration, arguments, param groups."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Opaque, Origin, Problem, Tensor
from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from zerotools.core.training_state import LossScale, ParamGroup, Scalar, TrainingState
from zerotools.formats.torch_optimizers import STATE_ROLE, WEIGHT_ROLES, optimizer_of, scalars_of
from zerotools.io.numeric.scalar_tensors import read_scalar
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile

_OF_RUN = ("args", "checkpoint_version", "content_metadata")


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """Return the param groups, formed according to Megatron's rule
    (`training_state.fitting_groups`), the step of each parameter, and the counters.

    Raises:
        BadFile: a number of the optimizer state, such as `step`, is missing from the files.
    """
    native = native_of(checkpoint)
    facts = native.facts
    listed = native.groups()
    groups, steps = (listed, {}) if listed else _groups(checkpoint, native)
    args = facts.args
    client = {name: facts.tree[name] for name in _OF_RUN if name in facts.tree and name != "args"}
    if args:
        client["args"] = dict(args)
    word = args.get("optimizer")
    return TrainingState(
        groups=groups,
        scalars=scalars_of(
            checkpoint, {Key(name, "step"): Scalar(value) for name, value in steps.items()}
        ),
        precision=facts.precision,
        optimizer=optimizer_of(groups) or (word if isinstance(word, str) and groups else None),
        steps=checkpoint.origin.step,
        samples=facts.count("consumed_train_samples"),
        lr_scheduler=facts.tree.get("opt_param_scheduler"),
        loss_scaler=_loss_scaler(native),
        client=client,
        is_ordered=False,
        knows_frozen=False,
    )


def _groups(
    checkpoint: Checkpoint, native: MegatronNative
) -> tuple[tuple[ParamGroup, ...], dict[str, int | float]]:
    """Return the param groups, and the step of each parameter with state."""
    trained = {
        key.name: tensor.shape
        for key, tensor in checkpoint.tensors.items()
        if key.role not in (*WEIGHT_ROLES, STATE_ROLE)
    }
    found = [
        (group, _step(native, optimizer, group))
        for optimizer in native.optimizers
        for group in groups_in(optimizer)
    ]
    members: list[list[str]] = [[] for _ in found]
    groups = [group for group, _ in found]
    for name, shape in trained.items():
        fits = list(fitting_groups(name, shape, groups, native.facts.args))
        if len(fits) != 1:
            return (), _common_step(found, trained)
        members[fits[0]].append(name)
    steps = {
        name: step
        for names, (_, step) in zip(members, found, strict=True)
        for name in names
        if step is not None
    }
    return tuple(
        ParamGroup(tuple(names), {k: v for k, v in group.items() if k not in ("params", "step")})
        for names, group in zip(members, groups, strict=True)
        if names
    ), steps


def _common_step(
    found: Sequence[tuple[Group, int | float | None]], trained: Mapping[str, Any]
) -> dict[str, int | float]:
    """Return {parameter: step} if all param groups have the same step, else an empty dict. Used if
    it is unknown which group a parameter belongs to.
    """
    steps = {step for _, step in found}
    step = steps.pop() if len(steps) == 1 else None
    return {} if step is None else dict.fromkeys(trained, step)


def _step(native: MegatronNative, optimizer: Mapping[Any, Any], group: Group) -> int | float | None:
    step = group.get("step")
    if step is None:
        inner = optimizer.get("optimizer", optimizer)
        state = inner.get("state") if isinstance(inner, Mapping) else None
        step = _step_of(state) if isinstance(state, Mapping) else None
    if isinstance(step, StoredTensor) and native.file is not None:
        step = read_scalar(native.file.root, native.file.tensor(step)).value
    return step if isinstance(step, int | float) and not isinstance(step, bool) else None


def _step_of(state: Mapping[Any, Any]) -> Any:
    """Return the step that an optimizer records: the common step of all parameters or, without it,
    the step of the first parameter.
    """
    if "common_step" in state:
        return state["common_step"]
    first = next((each for number, each in state.items() if type(number) is int), None)
    return first.get("step") if isinstance(first, Mapping) else None


def _loss_scaler(native: MegatronNative) -> LossScale | None:
    saved = next((each["grad_scaler"] for each in native.optimizers if "grad_scaler" in each), None)
    if not isinstance(saved, Mapping) or native.file is None:
        return None
    scale = saved.get("scale")
    if isinstance(scale, StoredTensor):
        scale = read_scalar(native.file.root, native.file.tensor(scale)).value
    if not isinstance(scale, int | float) or isinstance(scale, bool):
        return None
    return LossScale(float(scale), dynamic="growth_tracker" in saved)


FORMAT = "megatron"
_ITERATION = re.compile(r"iter_(\d{1,18})")
_PARALLEL = {
    "tensor_model_parallel_size": "TP",
    "pipeline_model_parallel_size": "PP",
    "context_parallel_size": "CP",
    "expert_model_parallel_size": "EP",
    "expert_tensor_parallel_size": "ETP",
    "data_parallel_size": "DP",
}
_SILENT = {"CP": 1, "EP": 1}
EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"


@dataclass(frozen=True, slots=True)
class MegatronFacts:
    """The values in a checkpoint that are not tensors.

    `args` are the arguments of the training script, keyed by name. `tree` has the other values of
    the file.
    """

    iteration: int | None
    args: Mapping[str, Any]
    tree: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """The degrees of parallelism, keyed by short name, such as TP. Degrees that are not
        recorded are left out.
        """
        found = {short: self.count(name) for name, short in _PARALLEL.items()}
        return {short: size for short, size in found.items() if size is not None}

    @property
    def model_parallel(self) -> int | None:
        """The number of ranks that together hold one model, not counting expert parallelism; None
        if it is not recorded."""
        known = [self.sizes.get(name) for name in ("TP", "PP")]
        return known[0] * known[1] if known[0] and known[1] else None

    @property
    def is_tied(self) -> bool:
        """True if the arguments record that the output layer uses the embedding."""
        return self.args.get("untie_embeddings_and_output_weights") is False

    @property
    def precision(self) -> DType | None:
        """The dtype that the model computes in."""
        dtype = self.args.get("params_dtype")
        if isinstance(dtype, DType):
            return dtype
        for name, known in (("bf16", BFLOAT16), ("fp16", FLOAT16)):
            if self.args.get(name) is True:
                return known
        return FLOAT32 if self.args.get("bf16") is False is self.args.get("fp16") else None

    def count(self, name: str) -> int | None:
        """Return the argument `name` if it is a count (a whole number), else None."""
        return _count(self.args.get(name))


def facts_of(tree: Any) -> MegatronFacts:
    """Return the recorded values in the dict of common.pt or of a rank's file."""
    table = tree if isinstance(tree, Mapping) else {}
    args = table.get("args")
    values = args.state if isinstance(args, Opaque) and isinstance(args.state, Mapping) else {}
    named = {str(name): value for name, value in values.items()}
    return MegatronFacts(_count(table.get("iteration")), named, table)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**62 else None


def origin_of(
    path: Path,
    title: str,
    facts: MegatronFacts,
    *,
    ranks: int | None,
    notes: Sequence[str] = (),
    refusal: str = "",
) -> Origin:
    """Return the origin of a Megatron checkpoint.

    `refusal` is the reason, as part of a sentence, why no output can be made from the checkpoint.
    """
    named = _ITERATION.fullmatch(path.name)
    step = facts.iteration if facts.iteration is not None else int(named[1]) if named else None
    when = "" if step is None else f" of iteration {step}"
    refused = (
        f"{path} is {title}{when}, which zerotools recognises but does not convert: {refusal}; "
        "export it with Megatron-Bridge (or Megatron-LM's tools/checkpoint/convert.py) to "
        "Hugging Face's format, and pass that directory"
    )
    return Origin(
        FORMAT,
        path,
        world_size=facts.count("world_size") or ranks,
        step=step,
        notes=(*_notes_on_run(facts), *notes),
        title=title,
        precision=facts.precision,
        refusal=refused if refusal else None,
    )


def _notes_on_run(facts: MegatronFacts) -> Iterator[str]:
    sizes = [f"{s} {n}" for s, n in facts.sizes.items() if _SILENT.get(s) != n]
    if sizes:
        yield f"saved with {', '.join(sizes)}"
    words = {
        "num_layers": "{} layers",
        "hidden_size": "hidden size {}",
        "num_attention_heads": "{} heads",
        "num_query_groups": "{} query groups",
        "num_experts": "{} experts",
        "padded_vocab_size": "vocabulary padded to {}",
    }
    counts = {name: facts.count(name) for name in words}
    if facts.args.get("group_query_attention") is False:
        counts["num_query_groups"] = None
    model = [words[name].format(count) for name, count in counts.items() if count]
    model += ["latent attention"] if facts.args.get("multi_latent_attention") is True else []
    if model:
        yield f"model: {', '.join(model)}"


def aliases_of(facts: MegatronFacts, tensors: Mapping[Key, Tensor]) -> dict[str, str]:
    """Return {output layer: embedding} if the arguments record that the output layer uses the
    embedding, and only the embedding is stored. Else return an empty dict.
    """
    names = {key.name for key in tensors}
    is_alias = facts.is_tied and EMBEDDING in names and OUTPUT not in names
    return {OUTPUT: EMBEDDING} if is_alias else {}


def iteration_problem(path: Path, facts: MegatronFacts, name: str) -> list[Problem]:
    """Return a list with a problem if the directory's name has another iteration than the file
    `name`, else an empty list.
    """
    named = _ITERATION.fullmatch(path.name)
    if named is None or facts.iteration is None or int(named[1]) == facts.iteration:
        return []
    said = (
        f"{path / name} is of iteration {facts.iteration}, but its directory is of iteration "
        f"{int(named[1])}; take another checkpoint"
    )
    return [Problem(said, name)]


_MOST_OPTIMIZERS = 64
Group = Mapping[str, Any]


def optimizers_in(tree: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], ...]:
    """Return the trees of all optimizers in common.pt or in a rank's file, sorted by the number of
    the optimizer.
    """
    found = tree.get("optimizer")
    if isinstance(found, list):
        found = dict(enumerate(found[:_MOST_OPTIMIZERS]))
    if not isinstance(found, Mapping):
        return ()
    numbered = [found[n] for n in range(_MOST_OPTIMIZERS) if n in found]
    return tuple(each for each in numbered or [found] if isinstance(each, Mapping))


def groups_in(optimizer: Mapping[Any, Any]) -> Iterator[Group]:
    """Yield the param groups of one optimizer, without copying their values."""
    inner = optimizer.get("optimizer", optimizer)
    groups = inner.get("param_groups") if isinstance(inner, Mapping) else None
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, Mapping):
            yield {str(name): value for name, value in group.items()}


def fitting_groups(
    name: str, shape: tuple[int, ...], groups: Sequence[Group], args: Mapping[str, Any]
) -> Iterator[int]:
    """Yield the numbers of the param groups that a parameter with this name and shape may belong
    to.

    Saved param groups do not list their parameters. But Megatron-Core makes the groups according to
    a rule. With expert parallelism, experts are in separate groups. Tensors with one dimension, and
    biases, have no weight decay. The embedding and the output layer may have a separate learning
    rate. The groups record these properties (`is_expert_parallel`, `wd_mult`, `is_decoupled_lr`).
    The caller uses the groups only if each parameter fits exactly one group.

    Source: `_get_param_groups` of megatron/core/optimizer/__init__.py, 0.12 to 0.16.
    """
    is_expert = ".experts." in name and any(g.get("is_expert_parallel") is True for g in groups)
    decays = not (len(shape) == 1 or name.endswith(".bias"))
    if args.get("apply_wd_to_qk_layernorm") is True and (
        "q_layernorm." in name or "k_layernorm." in name
    ):
        decays = True
    is_apart = name in (EMBEDDING, OUTPUT) and any(g.get("is_decoupled_lr") is True for g in groups)
    for number, group in enumerate(groups):
        if (
            (group.get("is_expert_parallel") is True) == is_expert
            and (group.get("wd_mult", 1.0) != 0) == decays
            and (group.get("is_decoupled_lr") is True) == is_apart
        ):
            yield number


@dataclass(frozen=True, slots=True)
class MegatronNative:
    """Values that the Megatron reader stores for `training_of`.

    Attributes:
        optimizers: the optimizer trees. The tree of the dense weights comes before the tree of the
            experts.
        file: the file that holds the numbers in the trees that are stored as tensors.
        unread: a sentence that says which state is left out, and why; empty if no state is left
            out.
        groups: a function that reads the param groups; it returns none if the saved groups do not
            list their parameters.
    """

    facts: MegatronFacts
    optimizers: Sequence[Mapping[Any, Any]] = field(default=())
    file: TorchFile | None = None
    unread: str = ""
    groups: Callable[[], tuple[ParamGroup, ...]] = tuple


def native_of(checkpoint: Checkpoint) -> MegatronNative:
    """Return the values that the Megatron reader stored; an empty `MegatronNative` if another
    reader made the checkpoint.
    """
    found = checkpoint.native
    return found if isinstance(found, MegatronNative) else MegatronNative(MegatronFacts(None, {}))
