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
from zerotools.ops.delta.apply_delta import apply_deltas, apply_part, plan_apply_part
from zerotools.ops.delta.delta_chain import ApplyRequest, DeltaChain, opened_deltas
from zerotools.ops.delta.delta_in_parts import make_delta_part
from zerotools.ops.delta.make_delta import make_delta, plan_delta, written_file
from zerotools.ops.delta.models_of_delta import ModelNaming, model_of
from zerotools.ops.execution.output_part import OutputPart
from zerotools.public.command_options.declare_and_bind_options import (
    OUTPUT,
    Option,
    StrPath,
    as_list,
    bind_options,
    takes_options,
)
from zerotools.public.command_options.model_output_options import (
    CheckNamesOption,
    MapOptions,
    RenamingOptions,
    map_request,
)
from zerotools.public.command_options.part_and_memory_options import (
    PartOptions,
    budget_of,
    chosen_part,
)
from zerotools.public.command_options.read_options import CheckingOptions, ConfigDirOption
from zerotools.public.progress import ProgressWanted, metering
from zerotools.public.run_conversion import PartResult, no_parts_in_store, no_proof_of_parts


class OverwriteOption(CheckingOptions, total=False):
    """The option `overwrite` of the commands that write or apply a delta."""

    overwrite: Annotated[bool, Option(group=OUTPUT, help="Replace an existing output.")]


class NamingOptions(
    RenamingOptions, CheckNamesOption, MapOptions, ConfigDirOption, OverwriteOption, total=False
):
    """Options of `delta` and `apply` for the names and the layout of tensors. A directory of
    safetensors in the Hub's layout keeps its names and its config."""


class DeltaKeywords(NamingOptions, PartOptions, total=False):
    """The options of `zerotools delta`."""

    dtype: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        Option(
            group=OUTPUT,
            default=AUTO,
            help="Dtype of the weights of B in the delta. auto: the dtypes in B if it is a "
            "directory of safetensors and no option renames its tensors, else the dtypes that "
            "consolidate chooses.",
        ),
    ]


class ApplyKeywords(NamingOptions, PartOptions, total=False):
    """The options of `zerotools apply`."""

    verify: Annotated[
        bool,
        Option(
            group=OUTPUT,
            help="Check the source, read the output back, compare, and record its digests.",
        ),
    ]
    resume: Annotated[
        bool, Option(group=OUTPUT, help="Continue an interrupted run of the same command.")
    ]


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
    return _fresh_path(given)  # type: ignore[arg-type]  # it refuses what is not a path


def _fresh_path(given: StrPath) -> Path:
    """Return `given` as a path. If it is in a store, cached facts about it are dropped, because
    another program may have written there."""
    path = path_of(given)
    if isinstance(path, RemotePath):
        path.forget()
    return path


def _listed(given: Any) -> list[StrPath | BinaryIO]:
    return [given] if hasattr(given, "read") else [*as_list(given)]


@dataclass(frozen=True)
class DeltaResult:
    """The result of `delta`. If one part was written and other parts are still missing,
    `delta_bytes`, `elements` and `changed` describe only this part.

    Attributes:
        delta_bytes, model_bytes: the sizes of the delta and of the model B.
        changed, elements: the number of elements that differ, and the number of all elements.
        new_tensors: the names of tensors that A does not have.
        notes: sentences for the user.
        part: the result of the part, if the options select a part. Its `bytes` are bytes of the
            model B.
    """

    delta_bytes: int
    model_bytes: int
    elements: int
    changed: int
    new_tensors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    part: PartResult | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values, as `--json` prints it."""
        found = {
            "delta_bytes": self.delta_bytes,
            "model_bytes": self.model_bytes,
            "elements": self.elements,
            "changed": self.changed,
            "new_tensors": list(self.new_tensors),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }
        return found if self.part is None else {**found, "part": self.part.to_json()}


@dataclass(frozen=True)
class ApplyResult:
    """The result of `apply`.

    Attributes:
        destination: the written directory.
        bytes_written: the size of the model; with `part`, the number of bytes of the part.
        tensors, files: the numbers of tensors and files of the model.
        notes: sentences for the user.
        part: the result of the part, if the options select a part.
        verified: True if the output was read back.
        manifest: the file of digests that `verify=True` wrote; None after a change in place.
    """

    destination: Path
    bytes_written: int
    tensors: int
    files: int
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    part: PartResult | None = None
    verified: bool = False
    manifest: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values, as `--json` prints it."""
        found = {
            "destination": str(self.destination),
            "bytes_written": self.bytes_written,
            "tensors": self.tensors,
            "files": self.files,
            "notes": list(self.notes),
            "seconds": self.seconds,
            "verified": self.verified,
            "manifest": None if self.manifest is None else str(self.manifest),
        }
        return found if self.part is None else {**found, "part": self.part.to_json()}


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

    Both are checkpoints of any format and number of ranks. The delta is between the models that
    `consolidate` would write from them with the same options. `apply` makes the model `b` from the
    model `a` and `out`. The options for names and layout do not change a directory of safetensors
    that has the names of its config.json.

    Raises:
        BadRequest: a path does not exist, `out` exists, or the models have different shapes.
        BadFile: a path is not a checkpoint, or is damaged.
        Unsupported: a format cannot be read.
    """
    given = bind_options(DeltaKeywords, options)
    begun, destination = time.monotonic(), _path_or_file(out, "write")
    part, overwrite = chosen_part(given), given["overwrite"]
    if part is not None:
        destination = _joined_output(destination)
    naming = _naming(given)
    with recording_sources(), metering(progress) as meter:
        first, of_first = model_of(_fresh_path(a), AUTO, naming)
        second, of_second = model_of(_fresh_path(b), given["dtype"], naming)
        budget = budget_of(given)
        if part is None:
            with (
                written_file(destination, overwrite=overwrite) as stream,
                meter(second.bytes_of_tensors, "delta") as on_bytes,
            ):
                found = make_delta(plan_delta(first, second), stream, budget, on_bytes)
            done = None
        else:
            assert isinstance(destination, Path)
            plan = plan_delta(first, second)
            nbytes = plan.bytes_of_part(part)
            with meter(nbytes, f"delta {part}") as on_bytes:
                found = make_delta_part(
                    plan, destination, part, budget, overwrite=overwrite, on_bytes=on_bytes
                )
            done = PartResult(part.index, part.of, (), nbytes, found.missing)
    is_unused = naming.changes_models and not (of_first or of_second)
    return DeltaResult(
        found.nbytes,
        found.model_bytes,
        found.elements,
        found.changed,
        found.new_tensors,
        (*found.notes, _NOT_USED) if is_unused else found.notes,
        time.monotonic() - begun,
        done,
    )


def _joined_output(destination: Path | BinaryIO) -> Path:
    """Return `destination`. Raises BadRequest or Unsupported if the parts of a delta cannot be
    joined there."""
    if not isinstance(destination, Path) or str(destination) == "-":
        raise BadRequest(
            "the parts of a delta are joined in a directory next to it; name a file that all "
            "parts can write, or leave --part out"
        )
    if isinstance(destination, RemotePath):
        raise no_parts_in_store(destination)
    return destination


@takes_options(ApplyKeywords)
def apply(
    a: StrPath,
    deltas: StrPath | BinaryIO | Sequence[StrPath | BinaryIO],
    out: StrPath | None = None,
    *,
    progress: ProgressWanted = None,
    **options: Unpack[ApplyKeywords],
) -> ApplyResult:
    """Apply one delta, or several in order, to the model at `a`, and write the directory `out`,
    which is a path or the URL of a directory in a store. Each delta is a path or the URL of an
    object in a store, or a binary file object to read from its current position.

    Without `out` the directory `a` itself is changed: the new directory is written next to it, and
    then the two are exchanged in one step.

    Raises:
        BadRequest: a path does not exist, `out` exists, a delta was made from another model, or
            there is no `out` and `a` is not a directory of safetensors.
        BadFile: a delta or the model is damaged, or its files changed meanwhile.
        Unsupported: a delta has another version, or an option is not possible in a store.
    """
    given: Mapping[str, Any] = bind_options(ApplyKeywords, options)
    begun, origin = time.monotonic(), _fresh_path(a)
    destination = origin if out is None else output_of(out)
    if str(out) == "-":
        raise BadRequest("the model is a directory, so OUT cannot be -; name a directory")
    part = chosen_part(given)
    _check_way(destination, part, is_in_place=out is None, resume=given["resume"])
    if part is not None and given["verify"]:
        raise no_proof_of_parts(destination)
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
        header = chain.header
        planned = None if part is None else plan_apply_part(chain, destination, part)
        nbytes = header.nbytes if planned is None else sum(planned.tensor_bytes.values())
        nbytes *= 2 if given["verify"] else 1
        with meter(nbytes, "apply" if part is None else f"apply {part}") as on_bytes:
            request = ApplyRequest(
                budget=budget,
                overwrite=given["overwrite"],
                resume=given["resume"],
                verify=given["verify"],
                on_bytes=on_bytes,
            )
            if planned is None:
                in_place = model if out is None else None
                found = apply_deltas(chain, destination, request, in_place=in_place)
                done = None
            else:
                found = apply_part(chain, destination, planned, request)
                done = PartResult.of_plan(planned, tuple(found.missing))
    return ApplyResult(
        destination,
        sum(file.size for file in header.files) if done is None else done.bytes,
        len(header.tensors),
        len(header.files),
        time.monotonic() - begun,
        tuple(found.notes),
        done,
        given["verify"],
        found.manifest if done is None else None,
    )


def _check_way(
    destination: Path, part: OutputPart | None, *, is_in_place: bool, resume: bool
) -> None:
    """Raise BadRequest or Unsupported if the output cannot be written in place, in parts, or
    resumed."""
    if isinstance(destination, RemotePath):
        if is_in_place:
            raise BadRequest(
                f"{destination} is in an object store, which cannot replace a directory in one "
                "step; name an output"
            )
        if part is not None:
            raise no_parts_in_store(destination)
    if is_in_place and part is not None:
        raise BadRequest(
            "a change in place replaces the directory in one step, so several runs cannot share "
            "it; name an output, or leave --part out"
        )
    if is_in_place and resume:
        raise BadRequest("a change in place always starts over; leave --resume out")
