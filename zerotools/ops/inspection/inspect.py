"""The contents of a checkpoint and its problems, from its metadata only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Problem, Tensor
from zerotools.core.errors import BadFile, Incomplete, Unsupported, ZerotoolsError
from zerotools.core.training_state import TrainingState
from zerotools.formats import FORMATS, FormatTable, training_of
from zerotools.formats.list_run_checkpoints import RunListing
from zerotools.ops.execution.plan_copies import prove_source, stored_elements
from zerotools.ops.inspection.training_summary import (
    CheckpointSummary,
    summarize,
    training_to_json,
)
from zerotools.ops.quantised.find_quantised import find_quantised
from zerotools.ops.quantised.quantised_weights import Quantisation

SCHEMA = "zerotools.inspect/1"


@dataclass(frozen=True)
class RoleSummary:
    """The sizes of all tensors of one role, such as param or exp_avg. `bytes` counts every element
    once, even if files store it several times."""

    role: str
    tensors: int
    elements: int
    bytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """The facts about a checkpoint that `zerotools inspect` shows.

    `incomplete` are the tensors with a missing part, each with an entry in `problems`.
    `training_notes` have the reason if the training state is not known.
    """

    checkpoint: Checkpoint
    roles: tuple[RoleSummary, ...]
    problems: tuple[Problem, ...]
    claimed_bytes: int
    run: CheckpointSummary
    incomplete: tuple[Key, ...] = ()
    training_notes: tuple[str, ...] = ()
    quantisation: Quantisation = field(default_factory=Quantisation)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user."""
        origin = self.checkpoint.origin
        said = (*origin.notes, origin.question, origin.refusal, *self.training_notes)
        said = (*said, *self.quantisation.doubts)
        return tuple(note for note in said if note)

    @property
    def has_lost_files(self) -> bool:
        """True if a tensor is incomplete, or if a missing file prevents every output."""
        gone = set(self.missing)
        blocking = (problem.file for problem in self.problems if problem.prevents_output)
        return bool(self.incomplete) or any(file in gone for file in blocking)

    @property
    def is_incomplete(self) -> bool:
        """True if data is lost, or if the name of a tensor is known but its data was not found."""
        return self.has_lost_files or any(problem.is_unread for problem in self.problems)

    @property
    def affected(self) -> tuple[str, ...]:
        """All files that the problems name: missing or damaged ones."""
        named = dict.fromkeys(problem.file for problem in self.problems if problem.file)
        return tuple(name for name in named if name is not None)

    @property
    def missing(self) -> tuple[str, ...]:
        """The `affected` files that do not exist."""
        root = self.checkpoint.root
        return tuple(name for name in self.affected if not (root / name).exists())

    @property
    def file_bytes(self) -> int:
        """The total size of the files that hold tensors."""
        return sum(self.checkpoint.files.values())

    @property
    def unclaimed_bytes(self) -> int:
        """The number of bytes in the files with tensors that belong to no tensor, such as headers,
        pickles and padding."""
        return max(0, self.file_bytes - self.claimed_bytes)

    @property
    def step(self) -> int | None:
        """The number of optimizer steps done; if it is not recorded, the number in the checkpoint's
        name. The name may count in another way: MaxText names a checkpoint after two steps `1`."""
        steps = self.run.training.steps
        return self.checkpoint.origin.step if steps is None else steps


def inspect(checkpoint: Checkpoint, table: FormatTable = FORMATS) -> Inspection:
    """Return a summary of the checkpoint, and check that every tensor is complete.

    Of the tensor data, only single numbers are read.
    """
    proof = prove_complete(checkpoint)
    training, problems, notes = _training_of(checkpoint, table, proof.problems)
    quantisation, faults = _quantisation_of(checkpoint)
    run = summarize(checkpoint, training)
    return Inspection(
        checkpoint,
        tuple(_roles(checkpoint)),
        (*proof.problems, *problems, *faults),
        proof.claimed_bytes,
        replace(run, parameters=run.parameters + _hidden_elements(checkpoint, quantisation)),
        proof.incomplete,
        notes,
        quantisation,
    )


_LOST = "the quantisation settings in config.json are unknown"


def _quantisation_of(checkpoint: Checkpoint) -> tuple[Quantisation, list[Problem]]:
    try:
        found = find_quantised(checkpoint)
    except BadFile as error:
        return Quantisation(), [Problem(str(error))]
    except OSError as error:
        place = f"{error.filename or checkpoint.root} cannot be read: {error.strerror}"
        return Quantisation(unknown=f"{_LOST}: {place}"), []
    except ZerotoolsError as error:
        return Quantisation(unknown=f"{_LOST}: {error}"), []
    return found, [Problem(message, tensor=name) for message, name in found.damage]


def _hidden_elements(checkpoint: Checkpoint, found: Quantisation) -> int:
    """Return by how much the elements of the quantised weights exceed the elements of their stored
    tensors. For example, 4-bit weights store two elements in one byte."""
    parts = [part for each in found.weights.values() for part in (*each.parts, *each.extra_keys)]
    stored = sum(checkpoint.tensors[key].numel for key in (*parts, *found.activations))
    return sum(each.tensor.numel for each in found.weights.values()) - stored


@dataclass(frozen=True)
class Proof:
    """The result of `prove_complete`. Problems that the reader found come first."""

    problems: tuple[Problem, ...]
    incomplete: tuple[Key, ...]
    claimed_bytes: int


def prove_complete(checkpoint: Checkpoint) -> Proof:
    """Check, without reading tensor data, that every tensor is complete."""
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
    return Proof(tuple(problems), tuple(incomplete), claimed)


def _training_of(
    checkpoint: Checkpoint, table: FormatTable, known: Sequence[Problem]
) -> tuple[TrainingState, tuple[Problem, ...], tuple[str, ...]]:
    """Return the training state, problems and notes. If the state cannot be read, it is empty. A
    note has the reason if zerotools does not support its contents. A problem has the reason if a
    file is damaged, unless a problem in `known` names this file."""
    try:
        return training_of(checkpoint, table), (), ()
    except Unsupported as error:
        return TrainingState(), (), (str(error),)
    except BadFile as error:
        message = str(error)
    named = (str(checkpoint.root / problem.file) for problem in known if problem.file)
    again = any(path in message for path in named)
    return TrainingState(), () if again else (Problem(message),), ()


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


def to_json(
    inspection: Inspection,
    *,
    chunks: bool = False,
    run: RunListing | None = None,
    commands: Sequence[str] = (),
    statistics: Mapping[Key, Any] | None = None,
) -> dict[str, Any]:
    """Return the form that docs/reference/inspect-json.md documents.

    `run` lists the checkpoints of the same run, and `commands` are those that the user can run
    next. `statistics` has the statistics of each tensor; None if they were not requested.
    """
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
        "step": inspection.step,
        "parameters": inspection.run.parameters,
        **training_to_json(inspection.run),
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
        "quantised": [
            {"kind": kind, "tensors": tensors, "scales": scales}
            for kind, (tensors, scales) in inspection.quantisation.kinds().items()
        ],
        "unclaimed_bytes": inspection.unclaimed_bytes,
        "files": [{"name": name, "bytes": size} for name, size in checkpoint.files.items()],
        "tensors": [
            _tensor_json(key, tensor, chunks=chunks)
            | ({} if statistics is None else {"statistics": statistics.get(key)})
            for key, tensor in checkpoint.tensors.items()
        ],
        "aliases": dict(checkpoint.aliases),
        "run": _run_json(run),
        "next": list(commands),
        "notes": list(inspection.notes),
        "problems": [
            {"message": problem.message, "file": problem.file, "tensor": problem.tensor}
            for problem in inspection.problems
        ],
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


def _run_json(run: RunListing | None) -> dict[str, Any] | None:
    if run is None:
        return None
    checkpoints = [
        {
            "name": checkpoint.name,
            "step": checkpoint.step,
            "format": checkpoint.format,
            "models": list(checkpoint.models),
            "fault": checkpoint.fault,
            "taken": checkpoint.is_taken,
        }
        for checkpoint in run.checkpoints
    ]
    return {"program": run.program, "path": str(run.path), "checkpoints": checkpoints}
