"""The class `Format`: the interface through which all other packages use a format.

Each format has a subclass in the `format.py` of its folder, and a line in the table in
`zerotools.formats`. These `format.py` modules are imported at every start. So they define only the
names by which the format is recognised, and import readers and writers inside the methods that use
them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from zerotools.core.checkpoint import Checkpoint, Key, Problem, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.training_state import TrainingState

if TYPE_CHECKING:
    from zerotools.core.target import Dropped, Target
    from zerotools.core.thinning_changes import Keep, Thinning
    from zerotools.runs.training_record import JobRecord


DEFAULT_MAX_SHARD_BYTES = 5 * 10**9


class UnfinishedCheckpoint(BadFile):
    """The save of a checkpoint did not finish."""


class _Options:
    """The options of a reader or a writer. An option that the user did not set is None."""

    def given(self) -> tuple[str, ...]:
        """Return the names of the options that the user set."""
        every = fields(self)  # type: ignore[arg-type]
        return tuple(each.name for each in every if getattr(self, each.name) is not None)


@dataclass(frozen=True, slots=True)
class ReadOptions(_Options):
    """The options of a reader, under their names on the command line.

    Attributes:
        tag: selects a tag of a DeepSpeed save directory.
        layout: a file of rules that say how the weights are split over tensor-parallel ranks.
        section: selects one of several models in a DCP.
    """

    tag: str | None = None
    layout: Path | None = None
    section: str | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions(_Options):
    """The options of a writer, under their names on the command line.

    Attributes:
        stage, sub_group_size, round_robin, ds_config: the settings of the DeepSpeed run that
            resumes. `ds_config` is the parsed configuration.
        style: the program that determines the names in a DCP.
        max_shard_bytes: the maximum size of a file of weights, in bytes.
        expert_parallel: the number of ranks that will share the experts of a layer.
        remark: a sentence on the weights, for formats that can store one.
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
        """Return the number of ranks to write files for: the number that the user set, else the
        number of ranks of `source`, or 1 if that is unknown.
        """
        asked = self.world_size if self.world_size is not None else source.origin.world_size
        return 1 if asked is None else asked

    def shard_bytes(self) -> int:
        """Return the maximum size of a file of weights, in bytes."""
        return DEFAULT_MAX_SHARD_BYTES if self.max_shard_bytes is None else self.max_shard_bytes


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that a format recognised: the path to read, and notes for the user.

    `is_sole` is True if the directory contains no other checkpoint.
    """

    path: Path
    notes: tuple[str, ...] = ()
    is_sole: bool = False


class Format(ABC):
    """The base class of all checkpoint formats. All other code uses a format only through these
    members.

    A format that can only be read defines `name`, `title`, `signs` and `read`, and keeps the
    defaults of all other members. A format that can be written overrides at least one of `lay_out`,
    `export` and `reshard`.
    """

    # Names.
    name: ClassVar[str]
    """The name of the format in `Origin.format`, in JSON, and in the table of formats."""
    title: ClassVar[str]
    """The name in messages: "torch DCP"."""
    word: ClassVar[str] = ""
    """The name by which the user selects this output format (`--to`, `--format`); if empty, it is
    `name`.
    """

    # Detection.
    signs: ClassVar[tuple[str, ...]] = ()
    """File names that identify a directory of this format. The message that a directory is not a
    checkpoint lists them."""
    entry_names: ClassVar[str] = ""
    """A regular expression. A directory in which no name matches it has no checkpoint of this
    format, so `find` is not called. If empty, the names are `signs`.
    """
    suffixes: ClassVar[tuple[str, ...]] = ()
    """The endings of file names that a checkpoint in a single file can have."""
    is_weights_format: ClassVar[bool] = False
    """True if programs save only models in this format. Then the final weights of a run may lie
    next to its checkpoints, and an optimizer may be in a file next to the weights.
    """
    is_nested: ClassVar[bool] = False
    """True if one directory may contain several checkpoints of this format, each in a directory of
    its own.
    """
    needs_map: ClassVar[bool] = False
    """True if tensors in this format have names of the program that saved them. Then a layout map
    is needed to get a Hugging Face model.
    """

    # Options and content.
    read_options: ClassVar[frozenset[str]] = frozenset()
    """The fields of `ReadOptions` that `read` uses."""
    write_options: ClassVar[frozenset[str]] = frozenset()
    """The fields of `WriteOptions` that `lay_out` uses. The options of an optimizer (`lr`, ...) are
    accepted if `writes_state`."""
    reshard_options: ClassVar[frozenset[str]] = frozenset()
    """The fields of `WriteOptions`, besides `world_size`, that `reshard` uses."""
    holds_state: ClassVar[bool] = True
    """True if files of this format can hold an optimizer."""
    writes_state: ClassVar[bool] = True
    """True if `lay_out` writes an optimizer. If False, it gets only weights."""
    names_state: ClassVar[bool] = False
    """True if optimizer state in this format needs the names of the parameters; False if numbers
    are enough.
    """
    says_weights: ClassVar[bool] = False
    """True if `lay_out` itself adds a note for the user if the source has no optimizer state."""
    sidecar_names: ClassVar[frozenset[str]] = frozenset()
    """Files next to the tensors that belong to the format and hold no data of the run."""
    may_hold_leftovers: ClassVar[bool] = False
    """True if a save into an existing directory may leave files of an earlier save there."""

    @property
    def is_written(self) -> bool:
        """True if the user can write this format with `convert --to`, because it overrides
        `lay_out`.
        """
        return type(self).lay_out is not Format.lay_out

    @property
    def is_exported(self) -> bool:
        """True if the user can write this format with `consolidate --format`, because it overrides
        `export`.
        """
        return type(self).export is not Format.export

    @property
    def reshards(self) -> bool:
        """True if the format overrides `reshard`: its checkpoints can be written again for another
        number of ranks. Then `convert` from the format to itself reshards too.
        """
        return type(self).reshard is not Format.reshard

    def may_be_in(self, names: set[str]) -> bool:
        """Return whether a directory with these `names` may have a checkpoint of this format."""
        if not self.entry_names:
            return not names.isdisjoint(self.signs)
        return any(map(re.compile(self.entry_names).fullmatch, names))

    def find(self, path: Path, names: set[str], options: ReadOptions) -> Found | None:
        """Return the checkpoint in the directory `path`, or None if the directory has no
        checkpoint of this format.

        `names` are the names in the directory; one of them matches `entry_names`, which is enough
        by default. No file is opened, except a file that names another file (`latest`).

        Raises:
            BadRequest: a directory inside `path` cannot be listed.
        """
        return Found(path)

    @abstractmethod
    def read(self, path: Path, options: ReadOptions) -> Checkpoint:
        """Return the checkpoint at `path`, which `find` or `find_file` returned. Only metadata is
        read.

        If damage is tolerated (`io.files.tolerated_damage`), lost bytes are recorded and become
        holes.

        Raises:
            BadRequest: `path` does not exist, or has no part that `options` selects.
            BadFile: the checkpoint is damaged or unfinished.
            Unsupported: this variant of the format cannot be read.
        """

    def training_of(self, checkpoint: Checkpoint) -> TrainingState:
        """Return the training state of `checkpoint`, a result of `read`.

        Numbers that the files store as tensors, such as `step`, are read. The default
        implementation returns only the precision.

        Raises:
            BadFile: the files contradict each other.
        """
        return TrainingState(precision=checkpoint.origin.precision)

    def find_file(self, path: Path) -> Found | None:
        """Return the checkpoint in the file `path`, or None if its name does not belong to this
        format.

        Raises:
            BadRequest: the file is a part of a checkpoint; its directory must be named.
        """
        return None

    def find_by_number(self, path: Path, names: set[str]) -> Found | None:
        """Return the checkpoint in the directory `path` if its file names end with rank numbers
        (`trainer_0.pt`, `trainer_1.pt`), else None.

        This method is called only if no format recognises other names in the directory.
        """
        return None

    def find_in_run(self, path: Path, names: set[str]) -> Found | None:
        """Return the checkpoint named by a file of this format in a run's directory, such as
        `latest`, or None.

        Raises:
            BadFile: the named checkpoint does not exist.
        """
        return None

    def refuse_unfinished(self, path: Path, names: set[str]) -> None:
        """Raise an error if the save of the checkpoint in the directory `path` did not finish.

        Raises:
            UnfinishedCheckpoint: the message names the file that shows this, and says what to do.
        """
        return

    def lay_out(
        self, source: Checkpoint, training: TrainingState, destination: Path, options: WriteOptions
    ) -> Target:
        """Plan a checkpoint of this format in the directory `destination`, from `source` of any
        format and its training state.

        `Target.dropped` lists the parts of `source` that are not written. If `writes_state` is
        False, `source` has only tensors with the roles `param` and `buffer`, already in the dtypes
        to write.

        Raises:
            BadRequest: a value that the format needs is unknown.
            Unsupported: the format cannot hold a tensor of `source`.
        """
        raise Unsupported(f"zerotools does not write {self.name}")

    def export(self, weights: Checkpoint, destination: Path, options: WriteOptions) -> Target:
        """Plan a model without training state, made from `weights`, in which all tensors have the
        role `param` or `buffer`.

        Raises:
            BadRequest: there is nothing to write, or two tensors have the same name.
            Unsupported: the format has no such dtype.
        """
        raise Unsupported(f"zerotools does not export {self.name}")

    def export_adapter(self, adapter: Checkpoint, destination: Path) -> Target:
        """Plan one file with the tensors of a PEFT adapter, under the file name that PEFT uses.
        Raise the same errors as `export`.
        """
        raise Unsupported(f"PEFT does not read adapters in {self.name}")

    def reshard(self, source: Checkpoint, destination: Path, options: WriteOptions) -> Target:
        """Plan the same checkpoint for `options.world_size` ranks. `source` is of this format, and
        the output has all of its content.

        Raises:
            BadRequest: the number of ranks is not possible, or options contradict each other.
            Unsupported: this variant of the format cannot be written.
        """
        raise Unsupported(f"zerotools does not reshard {self.name}")

    def ranks_divisor(self, source: Checkpoint) -> int:
        """Return a number D such that `reshard` can write `source` for every multiple of D ranks.
        Return 0 if no such number is known.
        """
        return 1 if self.reshards else 0

    def thin(self, source: Checkpoint, keep: Keep, options: ReadOptions) -> Thinning:
        """Plan how to remove the optimizer state from the files of `source`, which is of this
        format.

        With `Keep.WEIGHTS` the masters are removed too. No element is cast. `options` are the
        options that `source` was read with.

        Raises:
            BadFile: a file is damaged.
            Unsupported: this format, or this variant of it, cannot be thinned.
        """
        raise Unsupported(
            f"{source.origin.path} is {self.title}, which zerotools does not thin; make a smaller "
            "checkpoint with zerotools convert or consolidate"
        )

    def is_laid_out(self, source: Checkpoint, options: WriteOptions) -> bool:
        """Return whether `source`, of this format, already has the files that `reshard` with these
        options would write.

        Raises:
            BadRequest: the options contradict each other.
        """
        same = source.origin.world_size == options.world_size
        return same and not set(options.given()) - {"world_size"}

    def how_to_reshard(self, source: Checkpoint, world_size: int) -> str:
        """Return a sentence that tells the user why `source` cannot be resharded, and what to do
        instead.
        """
        return (
            f"{source.origin.path} is {self.name}, which zerotools does not reshard; to make a "
            f"checkpoint for {world_size} ranks from it, use zerotools convert --world-size "
            f"{world_size} with --to dcp, or with --to deepspeed and --ds-config FILE"
        )

    def check_weights(self, source: Checkpoint) -> None:
        """Compare the first elements of the masters with the 16-bit weights, if the files have
        both.

        Raises:
            Unsupported: masters and weights differ. Either they are from two saves, or they are not
                at the positions that the files record.
            BadFile: a file is truncated.
        """
        return

    def weight_pairs(self, source: Checkpoint) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield (name, master, weight) for each weight that the files store both as a master and
        cast to 16 bits.
        """
        for key, master in source.tensors.items():
            weight = source.tensors.get(Key(key.name, "param16"))
            if key.role == "param" and weight is not None and weight.shape == master.shape:
                yield key.name, master, weight

    def files_of_one_save(self, source: Checkpoint) -> Collection[str]:
        """Return the files, relative to `source.root`, that certainly belong to one save.

        Such a file records its step and rank, or its values agree with a file that records them.
        Any other file may be from another save or rank without showing it.

        Raises:
            BadFile: a file is damaged.
        """
        return ()

    def doubts(self, source: Checkpoint) -> Mapping[str, str]:
        """Return sentences for the user about files that may be missing. Each sentence is keyed by
        an existing file (relative to `source.root`) that suggests the missing file.

        The checkpoint does not prove that the missing file ever existed.
        """
        return {}

    def compare_copies(self, source: Checkpoint) -> None:
        """If the files store a tensor several times, compare the copy that is read with all other
        copies.

        Raises:
            BadFile: two copies differ, or a file is truncated.
        """
        return

    def latest_problems(self, source: Checkpoint) -> Iterator[Problem]:
        """Yield a problem for each file next to the checkpoint, such as `latest`, with wrong
        content.
        """
        yield from ()

    def numbered_state(self, source: Checkpoint) -> tuple[Checkpoint, TrainingState] | None:
        """Return the optimizer state that identifies its parameters only by number, or None if
        there is no such state.

        `read` leaves this state out. The tensors of the returned state are in files below
        `source.root`, and `TrainingState.unnamed` has the numbers.

        Raises:
            BadFile: it is damaged.
            Unsupported: it is the state of several optimizers.
        """
        return None

    def read_state(self, path: Path, weights: Mapping[str, tuple[int, ...]]) -> Checkpoint:
        """Read the optimizer in the file `path`, which is next to a model; `weights` has the shapes
        of the model's weights.

        Raises:
            BadFile: it is damaged.
            Unsupported: this variant of the format cannot be read.
        """
        raise Unsupported(f"zerotools cannot read {path} as the state of an optimizer")

    def job_record(self, source: Checkpoint) -> JobRecord | None:
        """Return the record of the zerotools job that saved `source`, or None if no job did.

        Raises:
            BadFile: the record is damaged.
        """
        return None

    def run_directory(self, source: Checkpoint) -> Path | None:
        """Return the directory that also contains other files of the run, or None."""
        return source.root if source.origin.path.is_dir() else None

    def never_written(self, source: Checkpoint) -> Collection[Dropped]:
        """Return the parts of `source` that no format can store, except parts that a `lay_out`
        already reports as dropped.
        """
        return ()


FormatTable = Mapping[str, Format]
"""Formats by name. If a directory holds several formats, the first one in the table is read."""


def format_option(form: Format) -> str:
    """Return the name that selects a format on the command line."""
    return form.word or form.name


def option_flag(option: str) -> str:
    """Return the command line option (such as `--world-size`) for a field of `ReadOptions` or
    `WriteOptions`.
    """
    return "--max-shard-size" if option == "max_shard_bytes" else f"--{option.replace('_', '-')}"
