"""The values that the page of a checkpoint shows, as JSON.

Tensors, files, roles, dtypes and param groups are listed once, and other values refer to them by
index. No tensor data is read. The size of the result grows with the number of tensors plus the
number of files, not with their product: a thousand ranks give a page of a few hundred kilobytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.layer_names import layers_in_order, place_of
from zerotools.formats import files_written_apart
from zerotools.io.files.source_stamps import WrittenApart
from zerotools.ops.inspection.completeness import CheckpointFault, grouped_faults
from zerotools.ops.inspection.inspect import Inspection
from zerotools.ops.inspection.loss_curves import loss_curves
from zerotools.ops.inspection.training_summary import frozen_weights, json_value
from zerotools.ops.weights.merged_config import HEADS, is_token_embedding, model_config

if TYPE_CHECKING:
    from zerotools.ops.statistics.checkpoint_statistics import CheckpointStatistics

MOST_CELLS = 300
"""The largest number of cells in the strip of a file. With more cells, a cell would be narrower
than a pixel."""
FEWEST_CELLS = 40
ALL_CELLS = 60_000
"""The number of cells in all strips together, unless there are too many files."""
UNCLAIMED = -1
"""The value in a strip for bytes that belong to no tensor, such as headers and padding."""
MOST_PROBLEMS = 100

TensorBytes = tuple[int, int, int]
"""The first byte in a file, the byte after the last, and the index of the tensor."""


def picture_contents(
    inspection: Inspection, statistics: CheckpointStatistics | None = None
) -> dict[str, Any]:
    """Return the values of the page of an inspected checkpoint, which `checkpoint.js` reads.

    Keys:
        title, verdict, is_whole, facts, notes, problems: the head of the page; `facts` are pairs
            of a name and a value.
        doubt: words that follow the verdict: the files from another save, and the number of tensors
            with NaN or infinite values. None if there are none, or if the checkpoint has problems.
        roles, dtypes, groups: the values that `tensors` refers to by index. Those of `groups` are
            the hyperparameters.
        tensors: a list of `[name, role, dtype, shape, elements, bytes, group, files, is_whole]`.
            `group` is -1 if the tensor is in no group, and `files` are ranges `[first, last]` of
            indexes.
        files: a list of `[name, bytes, strip, is_named_by_a_problem]`. `strip` is the result of
            `strip`; None if the file does not exist.
        apart: the times of files that were not written together with the others, keyed by the
            file's index.
        aliases: pairs of a tied name and the name that holds the bytes, also for an output layer
            that only config.json ties.
        frozen: the indexes of the tensors that were not trained; None if the checkpoint does not
            record them.
        statistics: the result of `statistics_contents`; None if no statistics were requested.
        curves: the loss of the run, with the name of its file; None if there is no such file.
    """
    checkpoint, training = inspection.checkpoint, inspection.run.training
    tensors = list(checkpoint.tensors.items())
    roles = list(dict.fromkeys(key.role for key, _ in tensors))
    dtypes = list(dict.fromkeys(tensor.dtype.name for _, tensor in tensors))
    missing = set(inspection.missing)
    names = sorted({*checkpoint.files, *missing})
    number = {name: index for index, name in enumerate(names)}
    tensor_bytes, file_ranges = _tensor_bytes((tensor for _, tensor in tensors), number)
    apart = files_written_apart(checkpoint)
    group_of = {name: n for n, group in enumerate(training.groups) for name in group.params}
    incomplete, affected = set(inspection.incomplete), set(inspection.affected)
    frozen = frozen_weights(checkpoint, training)
    cells = max(FEWEST_CELLS, min(MOST_CELLS, ALL_CELLS // max(1, len(names))))
    return {
        "title": str(checkpoint.origin.path),
        "verdict": _verdict(inspection),
        "is_whole": not inspection.problems,
        "doubt": None if inspection.problems else "; ".join(_doubts(apart, statistics)) or None,
        "facts": _facts(inspection, statistics),
        "notes": list(inspection.notes),
        **head_problems(inspection.problems),
        "roles": roles,
        "dtypes": dtypes,
        "groups": [
            {"tensors": len(group.params), "options": _options(group.options)}
            for group in training.groups
        ],
        "tensors": [
            [
                key.name,
                roles.index(key.role),
                dtypes.index(tensor.dtype.name),
                list(tensor.shape),
                tensor.numel,
                tensor.nbytes,
                group_of.get(key.name, -1),
                file_ranges[index],
                key not in incomplete,
            ]
            for index, (key, tensor) in enumerate(tensors)
        ],
        "files": [
            [
                name,
                checkpoint.files.get(name, 0),
                None
                if name in missing
                else strip(tensor_bytes[index], checkpoint.files.get(name, 0), cells),
                name in affected,
            ]
            for index, name in enumerate(names)
        ],
        "apart": {} if apart is None else {number[name]: apart.when for name in apart.names},
        "aliases": [*map(list, checkpoint.aliases.items()), *_tied_by_config(checkpoint)],
        "frozen": None
        if frozen is None
        else [n for n, (key, _) in enumerate(tensors) if key.name in frozen],
        "statistics": None
        if statistics is None
        else statistics_contents([key for key, _ in tensors], statistics),
        "curves": _curves(inspection),
    }


def _curves(inspection: Inspection) -> dict[str, Any] | None:
    found = loss_curves(inspection.checkpoint)
    if found is None:
        return None
    return {
        "source": found.source.name,
        "fault": found.fault,
        "averaged": found.averaged,
        "step": inspection.step,
        "loss": found.loss,
        "eval_loss": found.eval_loss,
        "lr": found.lr,
    }


def statistics_contents(keys: Sequence[Key], statistics: CheckpointStatistics) -> dict[str, Any]:
    """Return the statistics of the tensors `keys`.

    Keys:
        layers, kinds: the names that `tensors` refers to by index.
        tensors: a list of `[min, max, mean, norm, zeros, nans, infinities, layer, kind, first
            exponent, negative, positive]`, with None for a tensor that was not read. The last three
            values are the histogram.
        stored_as: the reasons why values are not those of a weight, keyed by the tensor's index.
        outliers: pairs of the index of a tensor and a reason.
    """
    places = [place_of(key.name) for key in keys]
    layers = {name: n for n, name in enumerate(layers_in_order(key.name for key in keys))}
    kinds = {kind: n for n, kind in enumerate(dict.fromkeys(place.kind for place in places))}
    number = {key: n for n, key in enumerate(keys)}
    rows: list[list[Any] | None] = []
    for key, place in zip(keys, places, strict=True):
        found = statistics.tensors.get(key)
        if found is None:
            rows.append(None)
            continue
        *figures, histogram = found.to_json().values()
        rows.append([*figures, layers[place.layer], kinds[place.kind], *histogram.values()])
    return {
        "layers": list(layers),
        "kinds": list(kinds),
        "tensors": rows,
        "stored_as": {number[key]: words for key, words in statistics.stored_as.items()},
        "outliers": [[number[key], why] for key, why in statistics.outliers.items()],
    }


def _tensor_bytes(
    tensors: Iterable[Tensor], number: dict[str, int]
) -> tuple[dict[int, list[TensorBytes]], list[list[list[int]]]]:
    """Return the byte ranges of tensors in each file, keyed by the file's index, and the files of
    each tensor, as ranges `[first, last]` of file indexes."""
    tensor_bytes: dict[int, list[TensorBytes]] = defaultdict(list)
    file_ranges = []
    for index, tensor in enumerate(tensors):
        files = set()
        for chunk in tensor.chunks:
            if (file := number.get(chunk.file)) is None:
                continue
            files.add(file)
            length = chunk.extent(tensor.dtype)
            tensor_bytes[file].append((chunk.offset, chunk.offset + length, index))
        file_ranges.append(list(_index_ranges(sorted(files))))
    return tensor_bytes, file_ranges


def _index_ranges(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield `[first, last]` for each run of consecutive numbers in the sorted `numbers`."""
    begin = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            yield [numbers[begin], numbers[place - 1]]
            begin = place


def strip(tensor_bytes: Iterable[TensorBytes], size: int, cells: int) -> list[int]:
    """Return a picture of a file of `size` bytes as a row of `cells` cells of equal size, in the
    form of `run_lengths`. The value of a cell is the index of the tensor with the most bytes there,
    or UNCLAIMED."""
    if not size:
        return [cells, UNCLAIMED]
    most: list[tuple[float, int]] = [(0.0, UNCLAIMED)] * cells
    width = size / cells
    for begin, end, tensor in tensor_bytes:
        for cell in range(int(begin / width), min(cells, int(max(begin, end - 1) / width) + 1)):
            held = min(end, (cell + 1) * width) - max(begin, cell * width)
            if held > most[cell][0]:
                most[cell] = (held, tensor)
    return run_lengths(tensor for _, tensor in most)


def run_lengths(cells: Iterable[int]) -> list[int]:
    """Return the values of cells in a shorter form: a number of equal neighbours, then their value,
    and so on."""
    found: list[int] = []
    for value in cells:
        if found and found[-1] == value:
            found[-2] += 1
        else:
            found += [1, value]
    return found


def _tied_by_config(checkpoint: Checkpoint) -> list[list[str]]:
    """Return the output layer and the embedding, if config.json ties them and the files have no
    output layer."""
    config = model_config(checkpoint.own_config)
    if config.get("tie_word_embeddings") is not True:
        return []
    names = {key.name for key in checkpoint.tensors if key.role == "param"}
    embeddings = [name for name in names if is_token_embedding(name)]
    if len(embeddings) != 1 or not {*names, *checkpoint.aliases}.isdisjoint(HEADS):
        return []
    return [["the output layer (config.json)", embeddings[0]]]


def head_problems(faults: Sequence[CheckpointFault]) -> dict[str, Any]:
    """Return the problems in the head of the page, and their number. The tensors that a faulty file
    makes incomplete are one problem.
    """
    own, consequences = grouped_faults(faults)
    texts = [*(fault.message for fault in own), *([consequences] if consequences else [])]
    return {"problems": texts[:MOST_PROBLEMS], "problem_count": len(texts)}


def _verdict(inspection: Inspection) -> str:
    if inspection.has_lost_files or inspection.incomplete:
        return "incomplete"
    return "has problems" if inspection.problems else "no problem found in its metadata"


def _doubts(apart: WrittenApart | None, statistics: CheckpointStatistics | None) -> Iterator[str]:
    """Yield words about files from another save, like `a.pt and 1 more were written ...`, and about
    tensors with values that are not finite.
    """
    if apart is not None:
        (first, *more) = apart.names
        were = f" and {len(more)} more were" if more else " was"
        yield f"{first}{were} {apart.when}"
    found = [] if statistics is None else map(statistics.tensors.get, statistics.outliers)
    if count := sum(each is not None and each.finite < each.elements for each in found):
        yield f"NaN or infinite values in {count} {'tensor' if count == 1 else 'tensors'}"


def _facts(inspection: Inspection, statistics: CheckpointStatistics | None) -> list[list[str]]:
    origin, run = inspection.checkpoint.origin, inspection.run
    version = f" ({origin.framework_version})" if origin.framework_version else ""
    scaler = run.training.loss_scaler
    facts = [
        ("format", f"{origin.title or origin.format}{version}"),
        ("step", inspection.step),
        ("ZeRO stage", origin.stage),
        ("world size", origin.world_size),
        ("parameters", f"{run.parameters:,}"),
        ("frozen", f"{run.frozen:,}" if run.frozen else None),
        ("weights", run.weights_dtype),
        ("masters", run.masters_dtype),
        ("optimizer", run.training.optimizer or run.training.optimizer_wrapper),
        ("loss scale", None if scaler is None else f"{scaler.scale:g}"),
        ("skipped steps", run.training.skipped or None),
        ("quantised", inspection.quantisation.words() or None),
        ("outliers", None if statistics is None else len(statistics.outliers)),
    ]
    return [[name, str(value)] for name, value in facts if value is not None]


def _options(options: Any) -> dict[str, Any]:
    """Return the hyperparameters of a group in a form that JSON can hold."""
    found = {str(name): json_value(value) for name, value in options.items()}
    return {name: value for name, value in found.items() if name != "params"}
