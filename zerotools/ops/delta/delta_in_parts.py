"""Make a delta in parts, each by another run. The run that completes the last missing part joins
them.

    OUT.partial/part-1             the beginning of the delta, to the last block of part 1
    OUT.partial/part-2             the blocks of part 2
    OUT.partial/joined             the delta, before it gets its name
    OUT.partial/.zerotools-...     the ledger of the parts, and the journal of each (`part_ledger`)

All runs divide the blocks in the same way, so the joined parts have the blocks of a delta that one
run makes. The header also has the digest of the inputs (`made_of`). By this digest, a run of a part
that begins after the delta is complete finds that it has nothing to do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.exclusive_directory import OwnDirectory
from zerotools.io.files.open_files import sync_directory
from zerotools.io.output.journal import NAME as LEDGER
from zerotools.io.output.journal import Journal, is_of_journals
from zerotools.io.output.part_ledger import PartLedger, check_parts, identity_of_parts
from zerotools.io.output.staging import partial_of
from zerotools.ops.conversions.conversion import refuse_merging
from zerotools.ops.delta.delta_file import BlockWriter, DeltaFile, read_made_of
from zerotools.ops.delta.make_delta import (
    DeltaPlan,
    DeltaReport,
    check_delta_output,
    write_blocks,
)
from zerotools.ops.execution.execute import size_of
from zerotools.ops.execution.execute_part import digest_of, gone_error
from zerotools.ops.execution.output_part import OutputPart
from zerotools.ops.execution.tile_workers import MemoryBudget

_JOINED = "joined"
_OWN = re.compile(rf"part-\d+|{_JOINED}")
_PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class _PartNote:
    """The journal entry of a complete part: the size and XXH3-128 of its file, and its numbers of
    blocks, elements and changed elements."""

    size: int
    digest: str
    blocks: int
    elements: int
    changed: int

    @classmethod
    def of(cls, noted: Any) -> _PartNote | None:
        """Return the entry `noted` of a journal; None if it has another form."""
        try:
            return cls(**noted)
        except TypeError:
            return None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def make_delta_part(
    plan: DeltaPlan,
    out: Path,
    part: OutputPart,
    budget: MemoryBudget,
    *,
    overwrite: bool,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> DeltaReport:
    """Make one part of a delta. The run that completes the last missing part writes the file `out`.

    Parts that earlier runs completed are kept. Nothing is done if `out` exists already and was made
    from the same inputs.

    Raises:
        BadRequest: `out` exists or cannot be written; or another run began it with other inputs, or
            in another number of parts.
        BadFile: a checkpoint is damaged, or changed while it was read; or the file of a part is
            damaged.
    """
    for each in (plan.a, plan.b):
        refuse_merging(each)
    making = _Making(plan, out, part, overwrite=overwrite)
    if (complete := making.complete_report()) is not None:
        return complete
    check_delta_output(out, overwrite=overwrite)
    try:
        with _shared_directory(out, part.of) as own:
            # The delta may have got its name while the directory was made anew.
            if (complete := making.complete_report()) is not None:
                return complete
            with closing(PartLedger(own.path, making.identity, part.of)) as ledger:
                with closing(ledger.journal(part.index)) as journal:
                    noted = making.write(journal, budget, on_bytes)
                with ledger.locked():
                    return making.finish(own, ledger, noted)
    except FileNotFoundError:
        if (complete := making.complete_report()) is not None:  # another run completed it
            return complete
        if partial_of(out).exists():
            raise
        raise gone_error(partial_of(out)) from None


class _Making:
    """Makes one part of the delta `out` in the directory of its parts."""

    def __init__(self, plan: DeltaPlan, out: Path, part: OutputPart, *, overwrite: bool) -> None:
        self._plan = plan
        self._out = out
        self._part = part
        self._overwrite = overwrite
        self.identity = plan.identity
        self._made_of = digest_of(self.identity)

    @property
    def _directory(self) -> Path:
        return partial_of(self._out)

    def complete_report(self) -> DeltaReport | None:
        """Return the report on `out` if it exists and was made from the same inputs, else None.
        Remove the parts that a killed run has left. A damaged `out` counts as missing if it may be
        overwritten, else BadFile is raised."""
        if read_made_of(self._out) != self._made_of:
            return None
        try:
            with self._out.open("rb") as stream:
                changed = DeltaFile(self._out, stream).changed
        except FileNotFoundError:  # it was removed meanwhile
            return None
        except BadFile as error:
            if self._overwrite:
                return None
            what = str(error).partition(";")[0]
            raise BadFile(f"{what}; pass --overwrite for all parts to make it again") from None
        if identity_of_parts(self._directory) in (None, self.identity):
            _remove_directory(self._directory)
        plan = self._plan
        size = self._out.stat().st_size
        return DeltaReport(
            size, plan.model_bytes, plan.elements, changed, plan.new_tensors, plan.notes
        )

    def write(
        self, journal: Journal, budget: MemoryBudget, on_bytes: Callable[[int], None]
    ) -> _PartNote:
        """Write the file of this part, unless an earlier run has completed it."""
        before = self._complete(journal.done, self._part.index)
        if before is not None:
            on_bytes(self._plan.bytes_of_part(self._part))
            return before
        path = self._directory / _name(self._part.index)
        with _file(path) as stream:
            writer, changed = write_blocks(
                self._plan, stream, budget, on_bytes, self._part, self._made_of
            )
        sync_directory(self._directory)
        elements = sum(each.elements for each in self._plan.blocks(self._part))
        digest = writer.digest.hexdigest()
        noted = _PartNote(writer.nbytes, digest, writer.blocks, elements, changed)
        journal.add(path.name, noted.to_json())
        return noted

    def _complete(self, done: Mapping[str, Any], number: int) -> _PartNote | None:
        """Return the journal entry of part `number` if its file is complete, else None."""
        noted = _PartNote.of(done.get(_name(number)))
        if noted is None or size_of(self._directory / _name(number)) != noted.size:
            return None
        return noted

    def finish(self, own: OwnDirectory, ledger: PartLedger, noted: _PartNote) -> DeltaReport:
        """Join the parts if all of them are complete. `noted` is the entry of this part."""
        if (complete := self.complete_report()) is not None:
            return complete
        if not own.is_at(self._directory):
            raise gone_error(self._directory)
        numbers = range(1, self._part.of + 1)
        found = {n: self._complete(ledger.done_of(n), n) for n in numbers}
        missing = tuple(n for n, each in found.items() if each is None)
        plan = self._plan
        if missing:
            return DeltaReport(
                noted.size,
                plan.model_bytes,
                noted.elements,
                noted.changed,
                plan.new_tensors,
                plan.notes,
                missing,
            )
        nbytes = self._join({n: each for n, each in found.items() if each is not None})
        check_delta_output(self._out, overwrite=self._overwrite)
        (self._directory / _JOINED).rename(self._out)
        sync_directory(self._out.absolute().parent)
        _remove_directory(self._directory)
        changed = sum(each.changed for each in found.values() if each is not None)
        return DeltaReport(
            nbytes, plan.model_bytes, plan.elements, changed, plan.new_tensors, plan.notes
        )

    def _join(self, parts: Mapping[int, _PartNote]) -> int:
        """Write the joined parts to a file, and return its size. Raises BadFile if the file of a
        part is damaged."""
        with _file(self._directory / _JOINED) as stream:
            writer = BlockWriter(stream)
            for number, noted in parts.items():
                path, digest = self._directory / _name(number), xxhash.xxh3_128()
                with path.open("rb") as source:
                    while piece := source.read(_PIECE):
                        digest.update(piece)
                        writer.write(piece)
                if digest.hexdigest() != noted.digest:
                    raise BadFile(
                        f"{path} is damaged: its digest is {digest.hexdigest()}, but "
                        f"{noted.digest} was recorded; remove it, and run part {number} again"
                    )
                writer.blocks += noted.blocks
            writer.end()
        return writer.nbytes


def _name(number: int) -> str:
    return f"part-{number}"


@contextmanager
def _file(path: Path) -> Iterator[BinaryIO]:
    """Return a context with an empty file for writing, which is then flushed to the disk. It is
    removed if an error is raised."""
    try:
        with path.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException as error:  # removed, and raised again
        with suppress(OSError):
            path.unlink()
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


@contextmanager
def _shared_directory(out: Path, parts: int) -> Iterator[OwnDirectory]:
    """Return a context with the directory of the parts of `out`, which other parts may use too."""
    path = partial_of(out)
    try:
        own = OwnDirectory(path, shared=True)
    except BlockingIOError:
        raise BadRequest(
            f"another run is writing {out}; wait for it, or choose another output"
        ) from None
    except OSError as error:
        if isinstance(error, NotADirectoryError) and path.exists():
            raise BadRequest(
                f"{path} is the unfinished file of a run without --part; wait for that run, or "
                "remove the file"
            ) from None
        raise BadRequest(f"{out} cannot be written: {error.filename}: {error.strerror}") from error
    try:
        check_parts(path, parts)
        (path / LEDGER).touch()
        yield own
    finally:
        own.close()


def _remove_directory(path: Path) -> None:
    """Remove the directory of parts, unless it has other files. The ledger is removed last."""
    with suppress(OSError):
        names = sorted(entry.name for entry in path.iterdir())
        for name in sorted(names, key=LEDGER.__eq__):
            if is_of_journals(name) or _OWN.fullmatch(name):
                (path / name).unlink(missing_ok=True)
        path.rmdir()
