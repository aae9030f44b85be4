"""Make the delta of two models, and apply deltas."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Unpack

from zerotools.core.errors import BadRequest
from zerotools.io.files.open_source import RemotePath
from zerotools.io.files.source_stamps import recording_sources
from zerotools.io.stores.parse_url import output_of, path_of
from zerotools.ops.conversions.quantised_export import AUTO
from zerotools.ops.delta.apply_delta import DeltaChain, apply_deltas, opened_deltas
from zerotools.ops.delta.make_delta import make_delta, written_file
from zerotools.ops.delta.weights_of_model import ModelNaming, model_of
from zerotools.public.command_options.map_options import MapOptions, map_request
from zerotools.public.command_options.model_output_options import CheckNamesOption, RenamingOptions
from zerotools.public.command_options.option import (
    OUTPUT,
    Option,
    StrPath,
    as_list,
    bind_options,
    takes_options,
)
from zerotools.public.command_options.read_options import CheckingOptions, ConfigDirOption
from zerotools.public.command_options.run_options import budget_of
from zerotools.public.progress import ProgressWanted, metering


class OverwriteOption(CheckingOptions, total=False):
    """The option `overwrite` of the commands that write or apply a delta."""

    overwrite: Annotated[bool, Option(group=OUTPUT, help="Replace an existing output.")]


class NamingOptions(
    RenamingOptions, CheckNamesOption, MapOptions, ConfigDirOption, OverwriteOption, total=False
):
    """Options of the commands on deltas for checkpoints that are not in the layout of the Hub. A
    directory of safetensors that is in this layout keeps its names and its config."""


class DeltaKeywords(NamingOptions, total=False):
    """The options of `zerotools delta`."""

    dtype: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        Option(
            group=OUTPUT,
            default=AUTO,
            help="Dtype of the weights of B in the delta. auto: the dtypes in B if it is a "
            "directory of safetensors that keeps its names, else the dtypes that consolidate "
            "chooses.",
        ),
    ]


class ApplyKeywords(NamingOptions, total=False):
    """The options of `zerotools apply`."""


_NOT_USED = (
    "the options for names and layout were not used, because A and B are directories of "
    "safetensors that fit their config.json"
)


def _naming(given: Mapping[str, Any]) -> ModelNaming:
    return ModelNaming(
        strip_prefix=given["strip_prefix"],
        rename=given["rename"],
        mapping=map_request(given),
        check_names=not given["no_check_names"],
        config_dir=given["config_dir"],
    )


def _path_or_file(given: StrPath | BinaryIO, method: str) -> Path | BinaryIO:
    """Return a path, or a file object with this method.

    Raises BadRequest if `given` is neither, or is a file object for text.
    """
    if isinstance(given, io.TextIOBase):
        raise BadRequest(f"{given!r:.200} is a file object for text; open the file in binary mode")
    if not isinstance(given, str | os.PathLike) and hasattr(given, method):
        return given
    return path_of(given)  # type: ignore[arg-type]  # it refuses what is not a path


def _listed(given: Any) -> list[StrPath | BinaryIO]:
    return [given] if hasattr(given, "read") else [*as_list(given)]


@dataclass(frozen=True)
class DeltaResult:
    """The result of `delta`.

    Attributes:
        delta_bytes, model_bytes: the sizes of the delta and of the model B.
        changed, elements: the number of elements that differ, and the number of all elements.
        new_tensors: the names of tensors that A does not have.
        notes: sentences for the user.
    """

    delta_bytes: int
    model_bytes: int
    elements: int
    changed: int
    new_tensors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values, as `--json` prints it."""
        return {
            "delta_bytes": self.delta_bytes,
            "model_bytes": self.model_bytes,
            "elements": self.elements,
            "changed": self.changed,
            "new_tensors": list(self.new_tensors),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class ApplyResult:
    """The result of `apply`: the written directory, its size in bytes, and its numbers of tensors
    and files."""

    destination: Path
    bytes_written: int
    tensors: int
    files: int
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values, as `--json` prints it."""
        return {
            "destination": str(self.destination),
            "bytes_written": self.bytes_written,
            "tensors": self.tensors,
            "files": self.files,
            "seconds": self.seconds,
        }


@takes_options(DeltaKeywords)
def delta(
    a: StrPath,
    b: StrPath,
    out: StrPath | BinaryIO,
    *,
    progress: ProgressWanted = None,
    **options: Unpack[DeltaKeywords],
) -> DeltaResult:
    """Write the file `out` with the difference between the models at `a` and `b`. `out` is a path
    or the URL of an object in a store, or a binary file object to write to.

    Both are checkpoints of any format and number of ranks. The models that `consolidate` would
    write from them with the same options are compared. `apply` makes the second model from the
    first model and `out`. The options for names and layout do not change a directory of safetensors
    that has the names of its config.json.

    Raises:
        BadRequest: a path does not exist, `out` exists, or the models have different shapes.
        BadFile: a path is not a checkpoint, or is damaged.
        Unsupported: a format cannot be read.
    """
    given = bind_options(DeltaKeywords, options)
    begun, destination = time.monotonic(), _path_or_file(out, "write")
    naming = _naming(given)
    with recording_sources(), metering(progress) as meter:
        first, of_first = model_of(path_of(a), AUTO, naming)
        second, of_second = model_of(path_of(b), given["dtype"], naming)
        with (
            written_file(destination, overwrite=given["overwrite"]) as stream,
            meter(second.bytes_of_tensors, "delta") as on_bytes,
        ):
            found = make_delta(first, second, stream, budget_of(given), on_bytes)
    is_unused = naming.changes_models and not (of_first or of_second)
    return DeltaResult(
        found.nbytes,
        found.model_bytes,
        found.elements,
        found.changed,
        found.new_tensors,
        (*found.notes, _NOT_USED) if is_unused else found.notes,
        time.monotonic() - begun,
    )


@takes_options(ApplyKeywords)
def apply(
    a: StrPath,
    deltas: StrPath | BinaryIO | Sequence[StrPath | BinaryIO],
    out: StrPath | None = None,
    *,
    progress: ProgressWanted = None,
    **options: Unpack[ApplyKeywords],
) -> ApplyResult:
    """Apply one delta, or several in order, to the model at `a`, and write the directory `out`.
    Each delta is a path or the URL of an object in a store, or a binary file object to read from
    its current position.

    Without `out` the directory `a` itself is changed: the new directory is written next to it, and
    then the two are exchanged in one step.

    Raises:
        BadRequest: a path does not exist, `out` exists, a delta was made from another model, or
            there is no `out` and `a` is not a directory of safetensors.
        BadFile: a delta or the model is damaged, or its files changed meanwhile.
        Unsupported: a delta has another version.
    """
    given: Mapping[str, Any] = bind_options(ApplyKeywords, options)
    begun, origin = time.monotonic(), path_of(a)
    destination = origin if out is None else output_of(out)
    if str(out) == "-":
        raise BadRequest("the model is a directory, so OUT cannot be -; name a directory")
    if isinstance(destination, RemotePath):
        raise BadRequest(f"{destination} is in an object store; name a directory of this machine")
    given_deltas = [_path_or_file(each, "read") for each in _listed(deltas)]
    if not given_deltas:
        raise BadRequest("name at least one delta")
    with (
        recording_sources(),
        metering(progress) as meter,
        opened_deltas(given_deltas) as files,
    ):
        model, _ = model_of(origin, AUTO, _naming(given))
        budget = budget_of(given)
        chain = DeltaChain(model, files, budget)
        with meter(chain.header.nbytes, "apply") as on_bytes:
            found = apply_deltas(
                chain,
                destination,
                budget,
                overwrite=given["overwrite"],
                in_place=model if out is None else None,
                on_bytes=on_bytes,
            )
    seconds = time.monotonic() - begun
    return ApplyResult(destination, found.nbytes, found.tensors, found.files, seconds)
