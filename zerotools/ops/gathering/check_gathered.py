"""Check that the collected files are a complete checkpoint, with the checks of `zerotools
verify`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.adapter_tensor_names import adapter_names, is_adapter_checkpoint
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile, BadRequest, Unsupported, ZerotoolsError
from zerotools.formats import format_of, read_any
from zerotools.formats.detect import allow_unfinished_name
from zerotools.io.files.tolerated_damage import tolerating_damage
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.verification.verification_result import Finding, Soundness, Verification
from zerotools.ops.verification.verify import ToVerify, carry_out_verify, prepare_verify
from zerotools.ops.weights.adapted_model import plain_weights
from zerotools.ops.weights.name_check import Fits, NotChecked, check_names

Progress = Callable[[int], None]
_LOADED = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")


@dataclass(frozen=True)
class StagedCheck:
    """The result of the checks on the collected files.

    `verifications` has one entry for each checkpoint that was found. `errors` has the reasons if
    none was found, and further problems. `notes` are sentences about names that were not compared.
    """

    directory: Path
    verifications: tuple[Verification, ...] = ()
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if the checks found no problem."""
        faulty = (each.verdict is Soundness.FAULTY for each in self.verifications)
        return not self.errors and not any(faulty)

    @property
    def findings(self) -> list[str]:
        """The problems, each as a sentence."""
        said = [finding.message for each in self.verifications for finding in each.findings]
        return [*self.errors, *said]

    @property
    def causes(self) -> list[str]:
        """The problems. If files are missing, incomplete tensors are left out: the files explain
        them."""
        if not self.missing:
            return self.findings
        found = [finding for each in self.verifications for finding in each.findings]
        return [*self.errors, *(each.message for each in found if each.tensor is None)]

    @property
    def missing(self) -> list[str]:
        """The files that the checkpoints lack, relative to the directory."""
        found = [(each, finding) for each in self.verifications for finding in each.findings]
        names = [self._named_by(each, finding) for each, finding in found]
        names += map(self._missing_file_in, self.errors)
        return list(dict.fromkeys(name for name in names if name is not None))

    def _named_by(self, found: Verification, finding: Finding) -> str | None:
        if finding.file is None:
            return self._missing_file_in(finding.message)
        paths = [base / finding.file for base in (found.checkpoint.root, found.files.base)]
        if any(path.exists() for path in paths) or not paths[0].is_relative_to(self.directory):
            return None
        return paths[0].relative_to(self.directory).as_posix()

    def _missing_file_in(self, message: str) -> str | None:
        """Return the path of the file that `message` reports as missing; None if it exists, or if
        the message reports something else."""
        match = re.match(rf"{re.escape(str(self.directory))}/(.+?) is missing\b", message)
        return match[1] if match and not (self.directory / match[1]).exists() else None


def find_gathered(directory: Path) -> tuple[list[ToVerify], tuple[str, ...]]:
    """Return the checkpoints in the staging directory, one for each tag, and the reasons if none
    was found. Problems are returned and not raised, so that they do not end the fetch."""
    with allow_unfinished_name(directory):
        try:
            first = prepare_verify(directory)
            others = [
                prepare_verify(directory, tag=tag) for tag in first.checkpoint.origin.other_tags
            ]
        except (BadFile, BadRequest, Unsupported) as error:
            faults = _further_faults(directory)
            is_among = any(_subject(each) == _subject(str(error)) for each in faults)
            return [], tuple(dict.fromkeys([*([] if is_among else [str(error)]), *faults]))
    return [first, *others], ()


def _subject(message: str) -> str:
    """Return the path of the missing file at the beginning of `message`."""
    return message.partition(" is missing")[0]


def _further_faults(directory: Path) -> list[str]:
    """Return further faults of a checkpoint that cannot be read. The reader runs again, and
    continues in spite of missing and damaged files."""
    with tolerating_damage() as damage:
        try:
            problems = read_any(directory).problems
        except ZerotoolsError:
            problems = ()
    return [*damage.faults.values(), *(problem.message for problem in problems)]


def verify_gathered(
    directory: Path,
    found: list[ToVerify],
    errors: tuple[str, ...],
    *,
    fast: bool,
    budget: MemoryBudget,
    with_names: bool = True,
    on_bytes: Progress = lambda _: None,
) -> StagedCheck:
    """Verify the checkpoints that `find_gathered` found. With `fast`, no tensor data is read. With
    `with_names`, the names of a whole model are compared with those that its config.json requires.
    """
    made = tuple(
        carry_out_verify(each, fast=fast, budget=budget, on_bytes=on_bytes) for each in found
    )
    checked = StagedCheck(directory, made, errors)
    if not with_names or not checked.is_whole:
        return checked
    said, notes = [], []
    for each in made:
        if format_of(each.checkpoint).holds_state and not _is_loaded(each.checkpoint):
            continue
        try:
            model, is_adapted = _model_of(each.checkpoint)
            names = check_names(model, model, "gather", is_merged=is_adapted)
        except ZerotoolsError as error:
            said.append(str(error))
            continue
        notes += [names.note] if isinstance(names, NotChecked) else []
        said += [_wrapped(each, names)] if isinstance(names, Fits) and names.naming.removed else []
    return replace(checked, errors=(*errors, *said), notes=tuple(notes))


def _is_loaded(checkpoint: Checkpoint) -> bool:
    """Return whether a file of the checkpoint, which torch saved, has a name that transformers
    loads."""
    return any(_LOADED.fullmatch(name) for name in checkpoint.files)


def _model_of(checkpoint: Checkpoint) -> tuple[Checkpoint, bool]:
    """Return the model without its adapter and True for a LoRA run, else the checkpoint itself and
    False."""
    names = adapter_names(checkpoint.tensors)
    if not names or is_adapter_checkpoint(checkpoint.tensors):
        return checkpoint, False
    return plain_weights(checkpoint, names[0]), True


def _wrapped(found: Verification, names: Fits) -> str:
    parts = " and ".join(names.naming.removed)
    return (
        f"the tensors of {found.checkpoint.origin.path} have {parts} in their names, and would "
        "fit config.json without it: gather changes no names, but zerotools consolidate removes "
        "it"
    )
