"""What the rest of zerotools knows of a format: the members of `Format`.

Each format implements it once, in `format.py` of its own folder, and is a line of the table in
`zerotools.formats`. These modules are imported at every start: they hold names and signs alone, and
import their readers and writers inside the methods that need them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from zerotools.core.checkpoint import Checkpoint, Key, Problem, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.thinning import Keep, Thinning
from zerotools.core.training import TrainingState

if TYPE_CHECKING:
    from zerotools.core.target import Dropped, Target
    from zerotools.runs.record import JobRecord


DEFAULT_MAX_SHARD_BYTES = 5 * 10**9


class UnfinishedCheckpoint(BadFile):
    """A checkpoint whose save was not finished."""


class _Options:
    """Options of which each is None where the user did not give it."""

    def given(self) -> tuple[str, ...]:
        """The names of those that were given."""
        every = fields(self)  # type: ignore[arg-type]
        return tuple(each.name for each in every if getattr(self, each.name) is not None)


@dataclass(frozen=True, slots=True)
class ReadOptions(_Options):
    """What `read` gets besides the path, by the names of the command line.

    `tag` chooses one of a DeepSpeed save directory; `layout` is a file of rules on how its
    tensor-parallel ranks share the weights; `section` chooses one of several models in a DCP.
    """

    tag: str | None = None
    layout: Path | None = None
    section: str | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions(_Options):
    """What a writer is told, by the names of the command line.

    `stage`, `sub_group_size`, `round_robin` and `ds_config` (its parsed tree) are what a resuming
    run of DeepSpeed should have; `style` is whose names a DCP has; `max_shard_bytes` is the size of
    the largest file of weights; `expert_parallel` is how many ranks share the experts of a layer in
    the run that goes on; `remark` is a sentence on the weights, for files that have a place for
    one.
    """

    world_size: int | None = None
    stage: int | None = None
    sub_group_size: int | None = None
    round_robin: bool | None = None
    ds_config: Mapping[str, Any] | None = None
    style: str | None = None
    max_shard_bytes: int | None = None
    expert_parallel: int | None = None
    remark: str | None = None

    def ranks(self, source: Checkpoint) -> int:
        """The ranks to write for: as asked, else as many as `source` has, else 1."""
        asked = self.world_size if self.world_size is not None else source.origin.world_size
        return 1 if asked is None else asked

    def shard_bytes(self) -> int:
        """The size of the largest file of weights, in bytes."""
        return DEFAULT_MAX_SHARD_BYTES if self.max_shard_bytes is None else self.max_shard_bytes


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint of a format: the path to read, and what to tell the user of the choice.
    `is_sole` says that nothing else in the directory is a checkpoint of its own."""

    path: Path
    notes: tuple[str, ...] = ()
    is_sole: bool = False


class Format(Protocol):
    """A format of checkpoints, as all of zerotools uses it.

    A class that derives from it must have the members that are abstract, and `name` and `title`.
    The others have a default, which is that of a format that is read and not written.
    """

    # What it is called.
    name: ClassVar[str]
    """The word in `Origin.format` and in JSON, and the key in the table."""
    title: ClassVar[str]
    """What messages call it: "torch DCP"."""
    word: ClassVar[str] = ""
    """What the command line calls it where it is written (`--to`, `--format`); empty: `name`."""

    # How it is found.
    signs: ClassVar[tuple[str, ...]] = ()
    """Names of files by which a directory of it is known, for the message that nothing is there."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """What the names of its files end with, where a single file can be a checkpoint."""
    lies_beside_checkpoints: ClassVar[bool] = False
    """Whether programs leave it, as the final weights, beside the checkpoints of a run."""
    is_nested: ClassVar[bool] = False
    """Whether a directory holds several checkpoints of it, each in a directory of its own."""

    needs_map: ClassVar[bool] = False
    """Whether its names are a program's own: a map makes a Hugging Face model of it."""

    # What it takes and holds.
    read_options: ClassVar[frozenset[str]] = frozenset()
    """The fields of `ReadOptions` that `read` uses."""
    is_written: ClassVar[bool] = False
    """Whether `lay_out` writes it, so that it is a choice of `convert --to`."""
    write_options: ClassVar[frozenset[str]] = frozenset()
    """The fields of `WriteOptions` that `lay_out` uses. Those of an optimizer (`lr`, ...) come
    with `holds_state`."""
    has_optimizer_beside: ClassVar[bool] = False
    """Whether programs save the optimizer of a model of this format in a file next to it."""
    names_state: ClassVar[bool] = False
    """Whether its optimizer state has the names of the weights, and cannot be by number."""
    holds_state: ClassVar[bool] = True
    """Whether it has a place for an optimizer. If not, `lay_out` is given weights alone."""
    says_weights: ClassVar[bool] = False
    """Whether its writer says itself that the source has no optimizer state."""
    is_exported: ClassVar[bool] = False
    """Whether `export` writes it, so that it is a choice of `consolidate --format`."""
    reshards: ClassVar[bool] = False
    """Whether `reshard` writes it, and `convert` to it, of a source in this format, does so."""
    reshard_options: ClassVar[frozenset[str]] = frozenset()
    """The fields of `WriteOptions`, beside `world_size`, that `reshard` uses."""
    sidecar_names: ClassVar[frozenset[str]] = frozenset()
    """Files beside the tensors that belong to the format itself, and say nothing of the run."""
    may_hold_leftovers: ClassVar[bool] = False
    """Whether a save leaves files of an earlier save under the same name where they are."""

    @abstractmethod
    def find(self, path: Path, names: set[str], options: ReadOptions) -> Found | None:
        """The checkpoint that the directory `path` is, whose entries have `names`; None: it is not
        one of this format. No file is read but such as name another.

        Raises:
            BadRequest: a directory in it cannot be listed.
        """

    @abstractmethod
    def read(self, path: Path, options: ReadOptions) -> Checkpoint:
        """The checkpoint at `path`, as `find` or `find_file` gave it. Reads metadata alone. Where
        lost bytes are tolerated (`io.files.damage`), what is lost of the files is noted, and is a
        hole.

        Raises:
            BadRequest: there is nothing at `path`, or not what `options` ask for.
            BadFile: it is damaged or unfinished.
            Unsupported: it is of a kind that is not read.
        """

    @abstractmethod
    def training_of(self, checkpoint: Checkpoint) -> TrainingState:
        """What `checkpoint`, as `read` gave it, says of the run beside its tensors. Reads numbers
        such as `step` where they are tensors.

        Raises:
            BadFile: the files contradict themselves.
        """

    def find_file(self, path: Path) -> Found | None:
        """The checkpoint that the file `path` is, by its name; None: it is not of this format.

        Raises:
            BadRequest: it is a part of a checkpoint, whose directory must be named.
        """
        return None

    def find_by_number(self, path: Path, names: set[str]) -> Found | None:
        """The checkpoint that the directory `path` may be by files of names of its own that count
        ranks, asked where nothing else is there; None: there are none of this format."""
        return None

    def find_in_run(self, path: Path, names: set[str]) -> Found | None:
        """The checkpoint that a run's directory `path` means by means of the format's own.

        Raises:
            BadFile: what names it names one that is not there.
        """
        return None

    def refuse_unfinished(self, path: Path, names: set[str]) -> None:
        """Refuse the directory `path` if the save of a checkpoint there was not finished.

        Raises:
            UnfinishedCheckpoint: says by what it is known, and what to do.
        """
        return

    def lay_out(
        self,
        source: Checkpoint,
        training: TrainingState,
        destination: Path,
        options: WriteOptions,
    ) -> Target:
        """Lay `source`, of any format, out in the directory `destination`, with what is known of
        its run. What the format cannot hold is in `Target.dropped`. Where `holds_state` is False,
        `source` has the roles `param` and `buffer` alone, in the types that are to be written.

        Raises:
            BadRequest: something that the format needs is known from nowhere.
            Unsupported: tensors that the format cannot hold.
        """
        raise Unsupported(f"{self.name} is not written")

    def export(self, weights: Checkpoint, destination: Path, options: WriteOptions) -> Target:
        """Lay `weights`, of the roles `param` and `buffer` alone, out as a model without a run.

        Raises:
            BadRequest: nothing to write, or two tensors of one name.
            Unsupported: a type that the format lacks.
        """
        raise Unsupported(f"{self.name} is not exported")

    def export_adapter(self, adapter: Checkpoint, destination: Path) -> Target:
        """Lay the tensors of a PEFT adapter out in one file, as PEFT calls it; raises as
        `export`."""
        raise Unsupported(f"PEFT does not read adapters in {self.name}")

    def reshard(self, source: Checkpoint, destination: Path, options: WriteOptions) -> Target:
        """Lay `source`, of this format, out for `options.world_size` ranks, with all that it holds.

        Raises:
            BadRequest: no run has so many ranks, or options that contradict each other.
            Unsupported: a kind of this format that is not written.
        """
        raise Unsupported(f"{self.name} is not resharded")

    def thin(self, source: Checkpoint, keep: Keep, options: ReadOptions) -> Thinning:
        """What of the files of `source`, of this format, stays without the state of its optimizer,
        and with `Keep.WEIGHTS` without the masters. Elements are not cast. `options` are those that
        it was read with.

        Raises:
            BadFile: a file is damaged.
            Unsupported: nothing can be taken out of this format, or out of this kind of it.
        """
        raise Unsupported(
            f"{source.origin.path} is {self.title}, of which zerotools drops nothing; zerotools "
            "convert or consolidate makes a smaller checkpoint beside it"
        )

    def is_laid_out(self, source: Checkpoint, options: WriteOptions) -> bool:
        """Whether `source`, of this format, is as `reshard` would write it.

        Raises:
            BadRequest: options that contradict each other.
        """
        same = source.origin.world_size == options.world_size
        return same and not set(options.given()) - {"world_size"}

    def how_to_reshard(self, source: Checkpoint, world_size: int) -> str:
        """A sentence for a source that is not resharded: why, and what to do instead."""
        return (
            f"{source.origin.path} is {self.name}, which zerotools does not reshard; zerotools "
            f"convert --to deepspeed or --to dcp, with --world-size {world_size}, makes a "
            "checkpoint for that many ranks from it"
        )

    def check_weights(self, source: Checkpoint) -> None:
        """Compare samples of masters with the 16-bit weights beside them, where there are both.

        Raises:
            Unsupported: they are of two saves, or do not lie as the files say.
            BadFile: a file is truncated.
        """
        return

    def weight_pairs(self, source: Checkpoint) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, master and weight wherever the files have both: the weight is the master, cast."""
        for key, master in source.tensors.items():
            weight = source.tensors.get(Key(key.name, "param16"))
            if key.role == "param" and weight is not None and weight.shape == master.shape:
                yield key.name, master, weight

    def files_of_one_save(self, source: Checkpoint) -> Collection[str]:
        """Files, relative to `source.root`, that belong together if nothing else is wrong: each
        says of which step and whose it is, or what it holds is compared with one that does. All
        others may be of another save, or another rank's, without a word.

        Raises:
            BadFile: a file is damaged.
        """
        return ()

    def doubts(self, source: Checkpoint) -> Mapping[str, str]:
        """Files, relative to `source.root`, by which another file may be missing, each with a
        sentence: nothing that was saved tells whether it was ever there."""
        return {}

    def compare_copies(self, source: Checkpoint) -> None:
        """Compare what other files have of tensors that are read from one.

        Raises:
            BadFile: two differ, or a file is truncated.
        """
        return

    def false_hints(self, source: Checkpoint) -> Iterator[Problem]:
        """What files beside the checkpoint say of it, such as `latest`, and is not so."""
        yield from ()

    def numbered_state(self, source: Checkpoint) -> tuple[Checkpoint, TrainingState] | None:
        """Optimizer state that the files of `source` have by the numbers of parameters alone, which
        `read` leaves out; None: there is none.

        The tensors lie below `source.root`; `TrainingState.unnamed` has their numbers.

        Raises:
            BadFile: it is damaged.
        """
        return None

    def read_state(self, path: Path, weights: Mapping[str, tuple[int, ...]]) -> Checkpoint:
        """The optimizer in the file `path`, which lies next to a model with `weights`.

        Raises:
            BadFile: it is damaged.
            Unsupported: it is of a kind that is not read.
        """
        raise Unsupported(f"{path} is not read as the state of an optimizer")

    def job_record(self, source: Checkpoint) -> JobRecord | None:
        """The record of the zerotools job that saved `source`; None: no job did.

        Raises:
            BadFile: the record is damaged.
        """
        return None

    def run_directory(self, source: Checkpoint) -> Path | None:
        """The directory whose other files belong to the run; None: there is none, or all of its
        files are the checkpoint's."""
        return source.root if source.origin.path.is_dir() else None

    def never_written(self, source: Checkpoint) -> Collection[Dropped]:
        """What of `source` no format has a place for, and no `lay_out` names."""
        return ()


FormatTable = Mapping[str, Format]
"""Formats by name, the one to take first where a directory holds several."""


def spelling(form: Format) -> str:
    """What the command line calls a format."""
    return form.word or form.name


def flag(option: str) -> str:
    """The option of the command line for a field of `ReadOptions` or `WriteOptions`."""
    return "--max-shard-size" if option == "max_shard_bytes" else f"--{option.replace('_', '-')}"
