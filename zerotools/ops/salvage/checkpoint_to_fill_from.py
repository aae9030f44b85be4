"""The checkpoint that holes are filled from: an older checkpoint of the run, or the model that the
run began with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.adapter_tensor_names import adapter_names
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import BadRequest
from zerotools.formats import FORMATS, FormatTable
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.salvage.examine_damage import ToExamine, examine_files, read_remaining
from zerotools.ops.salvage.exported_weights import Naming, Weights, tied_to, weights_of
from zerotools.ops.salvage.fill_holes import FilledWeight, fill_weight, with_absolute_names
from zerotools.ops.salvage.find_holes import sound_tensor
from zerotools.ops.weights.lora_merge import AdapterRequest

_MOST_NAMED = 5


@dataclass(frozen=True)
class Other:
    """A checkpoint with values that fill the holes of a damaged checkpoint.

    `weights` have the names of the output and absolute file names.
    """

    given: ToExamine
    naming: Naming
    scratch: Path
    weights: Weights
    request: AdapterRequest | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        return self.given.remains.checkpoint

    @property
    def name(self) -> str:
        """The name of the checkpoint in messages and reports."""
        return str(self.checkpoint.origin.path)

    @property
    def files(self) -> Mapping[str, int]:
        return self.weights.masters.files

    def refuse_another_model(self, weights: Checkpoint) -> None:
        """Raise an error if this checkpoint does not have the same model as `weights`.

        Raises:
            BadRequest: this checkpoint and `weights` have no name in common, or a tensor has
                different shapes. The message has the name or the shapes.
        """
        path = weights.origin.path
        pairs = [
            (key.name, tensor, self._find(tied_to(weights, key.name)))
            for key, tensor in weights.tensors.items()
        ]
        both = [(name, ours, theirs) for name, ours, theirs in pairs if theirs is not None]
        if pairs and not both:
            names = next(iter(self.weights.masters.tensors), None)
            raise BadRequest(
                f"{self.name} cannot fill {path}: they are of different models; {path} has "
                f"{pairs[0][0]}, but the other has names such as "
                f"{names.name if names else 'none'}: pass --rename or --strip-prefix if only the "
                "names differ"
            )
        differing = [
            f"{name} is {list(ours.shape)} in {path} and {list(theirs.shape)} in {self.name}"
            for name, ours, theirs in both
            if ours.shape != theirs.shape
        ]
        if differing:
            more = len(differing) - _MOST_NAMED
            others = f"; and {more} more" if more > 0 else ""
            raise BadRequest(
                f"{self.name} cannot fill {path}, because shapes differ: "
                f"{'; '.join(differing[:_MOST_NAMED])}{others}"
            )

    def sources_of(self, names: Iterable[str], tensor: Tensor) -> list[tuple[str, Tensor]]:
        """Return a list with one pair: the name of this checkpoint, and its tensor that may fill
        `tensor`. `names` are all names of `tensor`.

        The list is empty if there is no such tensor, or if the dtypes differ and one of them is not
        a floating-point dtype.
        """
        found = self._find(names)
        if found is None or not _is_cast(found, tensor):
            return []
        return [(self.name, found)]

    def whole(self, name: str) -> FilledWeight | None:
        """Return the weight `name` of this checkpoint; None if it does not exist or has holes."""
        key, found = Key(name, "param"), self._find([name])
        if found is None:
            return None
        nothing = replace(found, chunks=())
        weight = fill_weight(key, nothing, [(self.name, found)])
        return weight if weight.holes is None else None

    def _find(self, names: Iterable[str]) -> Tensor | None:
        tensors = self.weights.masters.tensors
        every = (other for name in names for other in tied_to(self.weights.masters, name))
        for name in every:
            for role in ("param", "buffer"):
                if (tensor := tensors.get(Key(name, role))) is not None:
                    return tensor
        return None

    def checked(self, used: Collection[str], budget: MemoryBudget) -> Other:
        """Read the files `used`, and return this checkpoint with only its undamaged chunks."""
        root = self.checkpoint.root.absolute()
        names = {file for file in self.checkpoint.files if str(root / file) in used}
        examined = examine_files(self.given, names, budget)
        weights = _weights(
            examined.checkpoint, self.naming, self.scratch, self.given.table, self.request
        )
        return replace(self, weights=weights)


def _is_cast(found: Tensor, tensor: Tensor) -> bool:
    return found.dtype == tensor.dtype or (found.dtype.is_float and tensor.dtype.is_float)


def read_other(
    path: Path,
    naming: Naming,
    destination: Path,
    table: FormatTable = FORMATS,
    *,
    request: AdapterRequest | None = None,
) -> Other:
    """Read the metadata of the checkpoint at `path`. Merged weights are computed next to
    `destination`, the planned output. `request` has the options for the adapter of a LoRA run.

    Raises:
        BadRequest, BadFile, Unsupported: as `read_remaining`.
    """
    given = read_remaining(path, table=table)
    scratch = destination.with_name(f".{destination.name}.other-sums")
    weights = _weights(_with_chunks_inside_files(given), naming, scratch, table, request)
    return Other(given, naming, scratch, weights, request)


def _with_chunks_inside_files(given: ToExamine) -> Checkpoint:
    """Return the checkpoint with only the chunks inside their files, damaged or not."""
    checkpoint = given.remains.checkpoint

    def there(file: str, begin: int, end: int) -> int:
        return max(0, min(end, checkpoint.files.get(file, 0)) - begin)

    tensors = {key: sound_tensor(tensor, there)[0] for key, tensor in checkpoint.tensors.items()}
    return replace(checkpoint, tensors=tensors)


def _weights(
    checkpoint: Checkpoint,
    naming: Naming,
    scratch: Path,
    table: FormatTable,
    request: AdapterRequest | None,
) -> Weights:
    if not adapter_names(checkpoint.tensors):
        request = None
    found = weights_of(checkpoint, naming, scratch, table, request=request)
    return replace(found, masters=with_absolute_names(found.masters))


def used_files(weights: Iterable[FilledWeight], other: Other) -> Iterator[str]:
    """Yield the files of `other` that fill holes of `weights`."""
    for weight in weights:
        for part in weight.fills:
            if part.source == other.name:
                yield from (chunk.file for chunk in part.tensor.chunks)
