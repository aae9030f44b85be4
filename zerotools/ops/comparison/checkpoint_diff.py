"""Compare two checkpoints, each of any format, ZeRO stage and number of ranks.

The same elements of both are read together, block by block, so no checkpoint is consolidated first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.training_state import TrainingState
from zerotools.formats import FORMATS, FormatTable
from zerotools.formats.format import option_flag
from zerotools.ops.comparison.diff_result import (
    ONLY_A,
    ONLY_B,
    CheckpointDiff,
    Described,
    RunComparison,
    TensorDifference,
)
from zerotools.ops.comparison.pair_tensors import (
    Pairing,
    Side,
    pair_up,
    propose,
    renamed_sides,
)
from zerotools.ops.comparison.read_two_tensors import Adapted, with_adapter
from zerotools.ops.comparison.tensor_diff import bytes_of, compare_tensors
from zerotools.ops.comparison.tolerance import Tolerance, parse_tolerance, tolerance_of_sums
from zerotools.ops.comparison.training_and_config_diff import compare_runs, training_or_note
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.weights.select_and_rename import parse_rule

MAX_MEMORY = 96 * 1024 * 1024
"""Size of all buffers in bytes.

With the interpreter and numpy, the process needs less than 256 MB.
"""


@dataclass(frozen=True, kw_only=True)
class DiffOptions:
    """The options of `zerotools diff`.

    Attributes:
        roles: the roles of tensors to compare, such as param or exp_avg; empty: all.
        include: globs for the names of tensors to compare; empty: all. If `roles` or `include`
            selects tensors, the training state is not compared.
        rename: rules `REGEX=REPL`.
        tolerance: the text of `--tolerance`. None: the bits must be equal, or with an adapter, the
            tolerance is that of `tolerance_of_sums`.
        tag, layout, section: options for reading, each for the checkpoints with a format that takes
            it.
        adapter: the directory of a PEFT adapter that is added to the second checkpoint.
        changes: measure equal tensors too, so that the change of each layer is known.
    """

    roles: Sequence[str] = ()
    include: Sequence[str] = ()
    rename: Sequence[str] = ()
    tolerance: str | None = None
    adapter: Path | None = None
    tag: str | None = None
    layout: Path | None = None
    section: str | None = None
    changes: bool = False


@dataclass(frozen=True)
class PreparedDiff:
    """Two checkpoints with their metadata and their paired tensors, ready to be compared."""

    a: Side
    b: Side
    pairing: Pairing
    tolerance: Tolerance
    notes: tuple[str, ...]
    is_of_runs: bool
    table: FormatTable
    adapted: Mapping[Key, Adapted] = field(default_factory=dict)
    measures_all: bool = False

    @property
    def bytes(self) -> int:
        """The total size in bytes of the compared tensors in both checkpoints."""
        return bytes_of(self.a.checkpoint, self.b.checkpoint, self.pairing.pairs)


def prepare_diff(
    a: Path, b: Path, options: DiffOptions, table: FormatTable = FORMATS
) -> PreparedDiff:
    """Read the metadata of the checkpoints `a` and `b`, and pair their tensors.

    Raises:
        BadRequest: a checkpoint does not exist, an option is wrong, or there is nothing to compare.
        BadFile: a path is not a checkpoint, or its metadata is damaged.
        Unsupported: the format of a checkpoint cannot be read.
    """
    if options.tolerance is not None:
        parse_tolerance(options.tolerance)
    rules = [parse_rule(text) for text in options.rename]
    ours, theirs = _read_both((a, b), options, table)
    adapted: Mapping[Key, Adapted] = {}
    if options.adapter is not None:
        theirs, adapted = with_adapter(theirs, options.adapter, table)
    text = options.tolerance or ("bits" if options.adapter is None else tolerance_of_sums(ours))
    tolerance = parse_tolerance(text)
    sides = renamed_sides(ours, theirs, rules)
    pairing = pair_up(sides[0], sides[1], options.roles, options.include)
    is_of_runs = not (options.roles or options.include)
    notes = tuple(sides[2])
    return PreparedDiff(
        sides[0],
        sides[1],
        pairing,
        tolerance,
        notes,
        is_of_runs,
        table,
        adapted,
        measures_all=options.changes,
    )


def _read_both(
    paths: tuple[Path, Path], options: DiffOptions, table: FormatTable
) -> list[Checkpoint]:
    """Read the two checkpoints at `paths`. Refuse an option that neither of their formats takes."""
    given = {"tag": options.tag, "layout": options.layout, "section": options.section}
    given = {name: value for name, value in given.items() if value is not None}
    forms = (
        [table[formats.detect(path, tag=options.tag, table=table).format] for path in paths]
        if given
        else []
    )
    for name in given:
        if not any(name in form.read_options for form in forms):
            raise BadRequest(
                f"neither {paths[0]} nor {paths[1]} is in a format for which "
                f"{option_flag(name)} can be used; leave it out"
            )
    found = []
    for number, path in enumerate(paths):
        own = {n: v for n, v in given.items() if n in forms[number].read_options}
        found.append(formats.read_any(path, table=table, **own))  # type: ignore[arg-type]
    return found


def carry_out_diff(
    prepared: PreparedDiff,
    budget: MemoryBudget | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> CheckpointDiff:
    """Read the paired tensors, and return their differences.

    `on_bytes` is called with the number of bytes that were read since its last call. These numbers
    add up to `prepared.bytes`.

    Raises:
        BadFile: a file changed while it was read.
    """
    a, b, pairing = prepared.a, prepared.b, prepared.pairing
    trainings, notes = [], [*prepared.notes, *pairing.notes]
    for word, side in (("A", a), ("B", b)):
        training, why = training_or_note(side, lambda c: formats.training_of(c, prepared.table))
        trainings.append(training)
        notes += [f"{word}: {note}" for note in (*side.checkpoint.origin.notes, why) if note]
    different = _different_models(a, b, pairing)
    if different is not None:  # names of only one format meet no others
        notes += [r for r in (a.checkpoint.origin.refusal, b.checkpoint.origin.refusal) if r]
    tensors: list[TensorDifference] = []
    if different is None:
        tensors = compare_tensors(
            a.checkpoint,
            b.checkpoint,
            pairing.pairs,
            prepared.tolerance,
            (budget or MemoryBudget(MAX_MEMORY)).reading(a.checkpoint.root, b.checkpoint.root),
            on_bytes,
            prepared.adapted,
            measures_all=prepared.measures_all,
        )
    tensors += _alone(a, pairing.only_a, ONLY_A, _numbers(b, trainings[1]))
    tensors += _alone(b, pairing.only_b, ONLY_B, _numbers(a, trainings[0]))
    run = None
    if prepared.is_of_runs and different is None:
        run, more = _run(a, b, trainings, pairing, is_of_sums=bool(prepared.adapted))
        notes += more
    return CheckpointDiff(
        a.checkpoint.origin,
        b.checkpoint.origin,
        prepared.tolerance,
        tuple(tensors),
        run,
        different,
        propose(_weights(a, pairing.only_a), _weights(b, pairing.only_b)),
        tuple(_problems(a, b)),
        tuple(notes),
        has_changes=prepared.measures_all,
    )


def diff(a: Path, b: Path, options: DiffOptions, table: FormatTable = FORMATS) -> CheckpointDiff:
    """Compare two checkpoints. Raises the errors of `prepare_diff` and `carry_out_diff`."""
    return carry_out_diff(prepare_diff(a, b, options, table))


def _different_models(a: Side, b: Side, pairing: Pairing) -> str | None:
    """Return a sentence for the user if the checkpoints have no tensor with the same name and
    shape, else None."""
    if not pairing.pairs:
        if not pairing.only_a or not pairing.only_b:
            return None
        counts = [count_text(len(only), "tensor") for only in (pairing.only_a, pairing.only_b)]
        return (
            f"A and B have no tensor name in common ({counts[0]} only in A, {counts[1]} only in "
            "B); make the names equal with --rename or --strip-prefix"
        )
    ours, theirs = a.checkpoint.tensors, b.checkpoint.tensors
    if any(ours[pair.a].shape == theirs[pair.b].shape for pair in pairing.pairs):
        return None
    first = pairing.pairs[0]
    return (
        f"none of the {count_text(len(pairing.pairs), 'common tensor')} has the same shape in "
        f"both: {first.name} is {list(ours[first.a].shape)} in A and "
        f"{list(theirs[first.b].shape)} in B"
    )


def _weights(side: Side, only: Iterable[tuple[Key, Key]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights in `only`, the tensors that the other checkpoint lacks,
    keyed by name."""
    names = {key.name for key, _ in only}
    return {name: shape for name, shape in side.weights.items() if name in names}


def _numbers(side: Side, training: TrainingState) -> set[Key]:
    """Return the keys of optimizer state that this checkpoint stores as plain numbers, such as
    `step`."""
    return {Key(side.new_name(key.name), key.role) for key in training.scalars}


def _alone(
    side: Side, only: Iterable[tuple[Key, Key]], status: str, numbers: set[Key]
) -> list[TensorDifference]:
    """Return a result with the status `status` for each tensor in `only`, the tensors that the
    other checkpoint lacks.

    A tensor in `numbers` is left out: the other checkpoint stores it as a plain number, which the
    comparison of the training state includes.
    """
    found = []
    for key, own in only:
        if key in numbers:
            continue
        tensor = side.checkpoint.tensors[own]
        described = Described(own, tensor.dtype, tensor.shape)
        a, b = (described, None) if status == ONLY_A else (None, described)
        found.append(TensorDifference(key.name, key.role, status, a, b))
    return found


def _run(
    a: Side,
    b: Side,
    trainings: Sequence[TrainingState],
    pairing: Pairing,
    *,
    is_of_sums: bool,
) -> tuple[RunComparison, list[str]]:
    compared = {Key(pair.name, pair.role) for pair in pairing.pairs}
    try:
        ours, theirs = trainings
        return compare_runs(a, b, ours, theirs, compared, is_of_sums=is_of_sums), []
    except BadFile as error:
        return RunComparison(), [f"the runs are not compared: {error}"]


def _problems(a: Side, b: Side) -> list[str]:
    return [
        f"{word}: {problem.message}"
        for word, side in (("A", a), ("B", b))
        for problem in side.checkpoint.problems
    ]
