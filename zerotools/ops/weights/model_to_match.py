"""Read the headers and config of a model that an export must match in names, shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest
from zerotools.formats.safetensors.read import read


@dataclass(frozen=True)
class Reference:
    """The weights of a Hugging Face model keyed by name, and its config and tokenizer files."""

    path: Path
    tensors: Mapping[str, Tensor]
    model_sidecars: Mapping[str, Path]

    def only(self, is_selected: Callable[[str], bool]) -> Reference:
        """Return the reference with only the selected tensors."""
        tensors = {name: tensor for name, tensor in self.tensors.items() if is_selected(name)}
        return Reference(self.path, tensors, self.model_sidecars)

    def dtype_for(self, name: str, stored: DType, otherwise: DType) -> DType:
        """Return the dtype for an exported tensor: that in the reference if `stored` may be cast to
        it, else `stored`; `otherwise` if the reference lacks the tensor."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return otherwise
        return tensor.dtype if _casts(stored, tensor.dtype) else stored


def _casts(source: DType, target: DType) -> bool:
    """Return whether `source` may be cast to `target`. Both must be floats of at least 16 bits,
    because narrower floats have separate scales."""
    return source.is_float and target.is_float and min(source.bits, target.bits) >= 16


def read_reference(path: Path) -> Reference:
    """Read the model at `path`, without reading weights.

    Raises:
        BadRequest: `path` does not exist.
        BadFile: `path` has no safetensors files, or they are damaged.
    """
    checkpoint = read(path)
    tensors = {key.name: tensor for key, tensor in checkpoint.tensors.items()}
    return Reference(path, tensors, checkpoint.model_sidecars)


def check_against(export: Checkpoint, reference: Reference) -> None:
    """Check that the export has the names, shapes and dtypes of the reference.

    Raises:
        BadRequest: there are differences. The message lists every mismatch, each on its own line.
    """
    found = list(_mismatches({key.name: t for key, t in export.tensors.items()}, reference.tensors))
    if found:
        count = "1 mismatch" if len(found) == 1 else f"{len(found)} mismatches"
        raise BadRequest(
            f"the export of {export.origin.path} does not match {reference.path}: {count}\n  "
            + "\n  ".join(found)
        )


def _mismatches(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> Iterator[str]:
    for name in sorted(theirs.keys() - ours.keys()):
        yield f"missing: {name}, {theirs[name].dtype} of shape {list(theirs[name].shape)}"
    for name in sorted(ours.keys() - theirs.keys()):
        yield f"extra: {name}, {ours[name].dtype} of shape {list(ours[name].shape)}"
    for name in sorted(ours.keys() & theirs.keys()):
        tensor, expected = ours[name], theirs[name]
        if tensor.shape != expected.shape:
            yield f"shape: {name} is {list(tensor.shape)}, not {list(expected.shape)}"
        if tensor.dtype != expected.dtype:
            yield f"dtype: {name} is {tensor.dtype}, not {expected.dtype}"
