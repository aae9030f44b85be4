"""Check from its metadata whether a checkpoint without a manifest is complete.

`damage_sentences` finds truncated and missing files. `lost_rank_sidecars` finds ranks that lack a
file that other ranks have, such as the state of random number generators. A run can resume without
this file, but these ranks get other random numbers. Such files are `rng_state_R.pth` of
transformers' Trainer, `random_states_R.pkl` of accelerate and `extra_state_world_size_N_rank_R.pt`
of verl.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar

from zerotools.core.checkpoint import Checkpoint, Problem
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, BadRequest, Unsupported, ZerotoolsError
from zerotools.formats import FORMATS, FormatTable, UnfinishedCheckpoint, detect, format_of, read
from zerotools.formats.detect import UNFINISHED, formats_in
from zerotools.io.files.directory_entries import names_in
from zerotools.io.huggingface.model_index import readable_index, refuse_missing, set_of
from zerotools.io.torchzip.file_range import SUFFIXES
from zerotools.ops.inspection.inspect import prove_complete
from zerotools.runs.thinning_record import is_workspace

_ZIP = b"PK\x03\x04"
_TENSORS, _INDEX = ".safetensors", ".index.json"
_TRAINER, _TRAINER_LAST = "training_args.bin", "trainer_state.json"


@dataclass(frozen=True, slots=True)
class Completeness:
    """The result of checking whether a path is a complete checkpoint.

    `is_checkpoint` is True if the path has a format that zerotools reads. `step` is the step that
    the checkpoint records. `problem` is the reason why the checkpoint is incomplete, or cannot be
    read. `is_unread` is True if zerotools does not support it, and so cannot check it.
    """

    is_checkpoint: bool
    step: int | None = None
    problem: str | None = None
    is_unread: bool = False


def check_completeness(path: Path, table: FormatTable = FORMATS) -> Completeness:
    """Check from the metadata of the checkpoint at `path` that its files contain every tensor
    completely."""
    try:
        detect(path, table=table)
    except ZerotoolsError as error:
        return Completeness(isinstance(error, UnfinishedCheckpoint), problem=str(error))
    try:
        problem = next(torn_files(path), None)
        checkpoint = read(path, table=table)
    except (ZerotoolsError, OSError) as error:
        unread = isinstance(error, (Unsupported, BadRequest))
        return Completeness(True, problem=str(error), is_unread=unread)
    found = next(
        (p for p in prove_complete(checkpoint).problems if not _is_left_over(p, checkpoint, table)),
        None,
    )
    if problem is None and found is not None:
        problem = found.message
    return Completeness(True, checkpoint.origin.step, problem)


def _is_left_over(problem: Problem, checkpoint: Checkpoint, table: FormatTable) -> bool:
    """Return whether a problem concerns only a file of an earlier save to the same directory."""
    file, root = problem.file, checkpoint.root
    if not format_of(checkpoint, table).may_hold_leftovers or file is None:
        return False
    if problem.prevents_output or problem.tensor:
        return False
    used = (chunk.file for tensor in checkpoint.tensors.values() for chunk in tensor.chunks)
    return (root / file).exists() and file not in used


def torn_files(path: Path) -> Iterator[str]:
    """Yield a sentence for each truncated file in the directory `path`, or for the file `path`.
    Also yield one if transformers' Trainer did not finish the save.

    Raises OSError.
    """
    found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    files = [p for p in found if not any(map(is_workspace, p.relative_to(path).parts))]
    names = {file.name for file in files if file.parent == path}
    if _TRAINER in names and _TRAINER_LAST not in names:
        yield (
            f"{path} has {_TRAINER} but no {_TRAINER_LAST}, which the Trainer writes last: the "
            "save was not finished; take an older checkpoint"
        )
    for file in files:
        if file.name.endswith(SUFFIXES) and _is_cut_off(file):
            yield (
                f"{file} is truncated: the end of the zip archive is missing; copy or download it "
                "again"
            )


def _is_cut_off(file: Path) -> bool:
    with file.open("rb") as stream:
        # Before torch 1.6 it was not a zip file, and it does not record its end.
        return stream.read(4) == _ZIP and not zipfile.is_zipfile(stream)


def damage_sentences(path: Path) -> Iterator[str]:
    """Yield a sentence for each truncated or missing file of the checkpoint at `path`.

    The checkpoint may come from any program, even if zerotools cannot read its layout. Raises
    OSError and BadFile.
    """
    if not path.is_dir():
        yield from _damage_of_file(path)
        return
    yield from torn_files(path)
    names = names_in(path)
    refuse_missing(path, (name for name in names if set_of(name) is not None))
    for name in sorted(names):
        if name.endswith((_TENSORS, *SUFFIXES)) and (path / name).is_file():
            yield from _damage_of_file(path / name)
        elif name.endswith(_INDEX) and (listed := readable_index(path / name)) is not None:
            for file in sorted({*listed.values()} - names)[:1]:
                yield f"{path / file} is missing, but {name} lists it; copy or download it again"
    # The layout of these is certain: files that they lack are missing.
    known = [form for form in formats_in(path, names, FORMATS) if not FORMATS[form].suffixes]
    if known and not UNFINISHED.fullmatch(path.name):
        seen = check_completeness(path)
        if seen.problem is not None and not seen.is_unread:
            yield seen.problem


def _damage_of_file(path: Path) -> Iterator[str]:
    if path.stat().st_size == 0:
        yield f"{path} is empty; copy or download it again"
    elif path.name.endswith(_TENSORS):
        from zerotools.formats.safetensors.header import read_header

        try:
            read_header(path)
        except BadFile as error:
            yield str(error)
        except Unsupported:  # the program reads it, whatever it holds
            return
    else:
        yield from torn_files(path)


_OF_RANK = re.compile(
    r"(?P<stem>rng_state_|random_states_|extra_state_world_size_(?P<size>\d{1,6})_rank_)"
    r"(?P<rank>\d{1,6})(?P<end>\.pth|\.pkl|\.pt)"
)
_MOST_NAMED = 8


def lost_rank_sidecars(
    base: object, names: Iterable[str], world_size: int | None
) -> Iterator[Problem]:
    """Yield a problem for each of the first ranks that lack a file that another rank has.

    `names` are the files of the checkpoint, relative to `base`. `world_size` is the number of
    ranks, and is used if the names do not have it.
    """
    ranks: dict[tuple[str, str], set[int]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for name in names:
        path = PurePosixPath(name)
        if match := _OF_RANK.fullmatch(path.name):
            family = (path.with_name(match["stem"]).as_posix(), match["end"])
            ranks.setdefault(family, set()).add(int(match["rank"]))
            sizes[family] = int(match["size"] or world_size or 0)
    for (stem, end), there in ranks.items():
        size = max(sizes[stem, end], max(there) + 1)
        lost = [rank for rank in range(size) if rank not in there][:_MOST_NAMED]
        for rank in lost:
            file = f"{stem}{rank}{end}"
            yield Problem(
                f"{base}/{file} is missing; the run had {size} ranks; copy or download it again",
                file,
            )


MOST_NAMES = 8


class CheckpointFault(Protocol):
    """A fault of a file, or of a tensor."""

    @property
    def message(self) -> str: ...
    @property
    def file(self) -> str | None: ...
    @property
    def tensor(self) -> object | None: ...


F = TypeVar("F", bound=CheckpointFault)


def grouped_faults(faults: Sequence[F]) -> tuple[list[F], str | None]:
    """Return the faults that are not the consequence of another one, and a sentence about the
    tensors with such consequences; None if there are none.

    The message of a consequence ends with its cause in parentheses: the message of a faulty file.
    """
    causes = {fault.message for fault in faults if fault.file is not None}
    lengths = {len(cause) for cause in causes}

    def is_consequence(fault: F) -> bool:
        if fault.tensor is None or fault.file is not None or not fault.message.endswith(")"):
            return False
        return any(fault.message[-length - 1 : -1] in causes for length in lengths)

    own, names = list[F](), list[str]()
    for fault in faults:
        if is_consequence(fault):
            names.append(str(fault.tensor))
        else:
            own.append(fault)
    if not names:
        return own, None
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    tensors = count_text(len(names), "tensor")
    return own, f"{tensors} incomplete because of that: {', '.join(names[:MOST_NAMES])}{more}"
