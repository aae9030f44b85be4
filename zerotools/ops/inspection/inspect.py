"""What a checkpoint holds, from its metadata alone, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Problem, Tensor
from zerotools.core.errors import BadFile, Incomplete
from zerotools.ops.execution.plan import prove_source, stored_elements
from zerotools.ops.inspection.run_summary import TrainingSummary, parameters_of, training_of

SCHEMA = "zerotools.inspect/1"


@dataclass(frozen=True)
class RoleSummary:
    """All tensors of one role; `bytes` counts every element once."""

    role: str
    tensors: int
    elements: int
    bytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """The facts about a checkpoint that `zerotools inspect` shows.

    `incomplete` are the tensors of which a part is missing; each is a problem too.
    """

    checkpoint: Checkpoint
    roles: tuple[RoleSummary, ...]
    problems: tuple[Problem, ...]
    claimed_bytes: int
    training: TrainingSummary
    incomplete: tuple[Key, ...] = ()

    @property
    def affected(self) -> tuple[str, ...]:
        """Files that are missing, or were read as damaged: those that problems name."""
        named = dict.fromkeys(problem.file for problem in self.problems if problem.file)
        return tuple(name for name in named if name is not None)

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of `affected` that are not there."""
        root = self.checkpoint.root
        return tuple(name for name in self.affected if not (root / name).exists())

    @property
    def file_bytes(self) -> int:
        """Size of all files that hold tensors."""
        return sum(self.checkpoint.files.values())

    @property
    def unclaimed_bytes(self) -> int:
        """Bytes of those files that are in no tensor: headers, pickles and padding."""
        return max(0, self.file_bytes - self.claimed_bytes)

    @property
    def parameters(self) -> int:
        """Elements of all weights, tied ones counted once."""
        return sum(tensor.numel for tensor in parameters_of(self.checkpoint).values())


def inspect(checkpoint: Checkpoint) -> Inspection:
    """Summarise, and prove that every tensor is whole. Reads no tensor data."""
    problems = list(checkpoint.problems)
    claimed = 0
    incomplete: list[Key] = []
    for key, tensor in checkpoint.tensors.items():
        try:
            stored = prove_source(key, tensor, checkpoint)
        except BadFile as error:
            problems.append(Problem(str(error), tensor=key.name))
            incomplete += [key] if isinstance(error, Incomplete) else []
            stored = stored_elements(tensor)
        claimed += stored * tensor.dtype.itemsize
    roles = tuple(_roles(checkpoint))
    training = training_of(checkpoint)
    return Inspection(checkpoint, roles, tuple(problems), claimed, training, tuple(incomplete))


def _roles(checkpoint: Checkpoint) -> Iterator[RoleSummary]:
    by_role: dict[str, list[Tensor]] = {}
    for key, tensor in checkpoint.tensors.items():
        by_role.setdefault(key.role, []).append(tensor)
    order = {"param": 0, "param16": 1, "buffer": 2}
    for role, tensors in sorted(by_role.items(), key=lambda item: (order.get(item[0], 3), item[0])):
        dtypes = Counter(tensor.dtype.name for tensor in tensors)
        yield RoleSummary(
            role,
            len(tensors),
            sum(tensor.numel for tensor in tensors),
            sum(tensor.nbytes for tensor in tensors),
            tuple(name for name, _ in dtypes.most_common()),
        )


def to_json(inspection: Inspection, *, chunks: bool = False) -> dict[str, Any]:
    """The documented, versioned form (docs/reference/inspect-json.md)."""
    checkpoint, origin = inspection.checkpoint, inspection.checkpoint.origin
    return {
        "schema": SCHEMA,
        "path": str(origin.path),
        "format": origin.format,
        "framework_version": origin.framework_version,
        "stage": origin.stage,
        "world_size": origin.world_size,
        "tag": origin.tag,
        "other_tags": list(origin.other_tags),
        "step": origin.step,
        "parameters": inspection.parameters,
        **_training_json(inspection.training),
        "roles": [
            {
                "role": role.role,
                "tensors": role.tensors,
                "elements": role.elements,
                "bytes": role.bytes,
                "dtypes": list(role.dtypes),
            }
            for role in inspection.roles
        ],
        "unclaimed_bytes": inspection.unclaimed_bytes,
        "files": [{"name": name, "bytes": size} for name, size in checkpoint.files.items()],
        "tensors": [
            _tensor_json(key, tensor, chunks=chunks) for key, tensor in checkpoint.tensors.items()
        ],
        "aliases": dict(checkpoint.aliases),
        "notes": [note for note in (*origin.notes, origin.question, origin.refusal) if note],
        "problems": [
            {"message": problem.message, "file": problem.file, "tensor": problem.tensor}
            for problem in inspection.problems
        ],
    }


def _training_json(training: TrainingSummary) -> dict[str, Any]:
    optimizer, groups = training.optimizer, training.param_groups
    return {
        "trainable_parameters": training.trainable,
        "frozen_parameters": training.frozen,
        "shared_parameters": training.shared,
        "weights_dtype": training.weights_dtype,
        "masters_dtype": training.masters_dtype,
        "optimizer": None
        if optimizer is None
        else {
            "name": optimizer.name,
            "class": optimizer.wrapper,
            "states": list(optimizer.states),
        },
        "param_groups": None
        if groups is None
        else [
            {
                "params": list(group.params),
                "elements": group.elements,
                "hyperparameters": dict(group.hyperparameters),
            }
            for group in groups
        ],
        "loss_scaler": training.loss_scaler,
        "skipped_steps": training.skipped_steps,
    }


def _tensor_json(key: Key, tensor: Tensor, *, chunks: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": key.name,
        "role": key.role,
        "dtype": tensor.dtype.name,
        "shape": list(tensor.shape),
    }
    if chunks:
        described["chunks"] = [
            {
                "start": list(chunk.box.start),
                "shape": list(chunk.box.shape),
                "file": chunk.file,
                "offset": chunk.offset,
            }
            for chunk in tensor.chunks
        ]
    return described
