"""Check whether a checkpoint is whole."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadRequest
from zerotools.formats.torch_optimizers import notes_on_weights
from zerotools.io.files.source_stamps import recording_sources
from zerotools.io.numeric.compare_values import ValueCounts
from zerotools.io.stores.parse_url import path_of
from zerotools.ops.execution.output_part import OutputPart
from zerotools.ops.inspection.inspect import inspect
from zerotools.ops.verification.compare_manifest import chosen_reference as compared_with
from zerotools.ops.verification.digest_manifest import (
    check_manifest_target,
    sidecar_of,
    write_digest_manifest,
)
from zerotools.ops.verification.verification_result import Finding, Soundness, Verification, to_json
from zerotools.ops.verification.verify import ToVerify
from zerotools.ops.verification.verify import carry_out_verify as carry_out
from zerotools.ops.verification.verify import prepare_verify as prepare_verification
from zerotools.public.command_options.declare_and_bind_options import (
    OUTPUT,
    WHAT,
    Option,
    PathOption,
    PathOrFlag,
    StrPath,
    bind_options,
    takes_options,
)
from zerotools.public.command_options.part_and_memory_options import (
    PartOptions,
    budget_of,
    chosen_part,
)
from zerotools.public.command_options.read_options import CheckingOptions, ReadingOptions
from zerotools.public.progress import ProgressWanted, metering


class ComparisonOptions(TypedDict, total=False):
    """Options that select checks and a manifest."""

    against: Annotated[
        PathOption | None,
        Option(
            group=WHAT,
            metavar="MANIFEST|PATH",
            help="Compare with a manifest, or with another checkpoint of any format.",
        ),
    ]
    fast: Annotated[
        bool,
        Option(group=WHAT, help="Check only the structure; read no tensor data."),
    ]
    write_manifest: Annotated[
        PathOrFlag | None,
        Option(
            group=OUTPUT,
            metavar="[FILE]",
            help="Write the digests of tensors and files.  [FILE: PATH.zerotools.json]",
        ),
    ]
    dry_run: Annotated[
        bool, Option(group=OUTPUT, help="Show the files and bytes to read; read no tensor data.")
    ]


class VerifyKeywords(ReadingOptions, ComparisonOptions, CheckingOptions, PartOptions, total=False):
    """The options of `zerotools verify`."""


@dataclass(frozen=True)
class VerifyResult:
    """The result of `verify`. If `part` was given, all values describe only this part.

    Attributes:
        verdict: "whole", "unchecked" (no problem was found, but some bytes cannot be checked) or
            "faulty"; None in a dry run.
        findings: the problems.
        unchecked: the files that no digest or checksum covers, each with the reason.
        nonfinite: the number of NaN and infinite values in each tensor.
        files: the names of the files to read.
        against: the manifest or checkpoint that the option `against` names.
        record: the manifest that the checkpoint itself contains.
        manifest: the path of the new manifest.
        next: a command for a check that leaves no byte unchecked; None if `verdict` is not
            "unchecked".
        verification: the result of `zerotools.ops.verification`.
    """

    path: Path
    format: str
    step: int | None
    verdict: Soundness | None
    findings: tuple[Finding, ...]
    unchecked: Mapping[str, str]
    nonfinite: Mapping[Key, ValueCounts]
    tensors: int
    files: tuple[str, ...]
    bytes_to_read: int
    bytes_read: int
    fast: bool
    part: OutputPart
    against: Path | None
    record: Path | None
    notes: tuple[str, ...]
    next: str | None
    manifest: Path | None
    dry_run: bool
    seconds: float
    verification: Verification | None = field(default=None, repr=False)

    @property
    def is_whole(self) -> bool:
        """True if everything was checked and no problem was found."""
        return self.verdict is Soundness.WHOLE

    def to_html(self) -> str:
        """Return a page for browsers that draws the checkpoint, and shows which bytes of each file
        are whole, damaged or unchecked. The page is one file, and needs no network.

        Raises:
            BadRequest: the result is that of a dry run, which checks nothing.
        """
        from zerotools.ops.picture.html_page import page_of
        from zerotools.ops.verification.verify_page_data import verification_contents

        if self.verification is None:
            raise BadRequest(
                "a dry run checks nothing, but a page shows the result of a check; leave out "
                "--dry-run"
            )
        inspection = inspect(self.verification.checkpoint)
        return page_of(verification_contents(self.verification, inspection))

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON (docs/reference/verify-json.md). After a dry run it has the
        files and the bytes to read.
        """
        if self.verification is None:
            return {
                "dry_run": True,
                "path": str(self.path),
                "part": self.part.index,
                "parts": self.part.of,
                "bytes_to_read": self.bytes_to_read,
                "files": list(self.files),
            }
        manifest = None if self.manifest is None else str(self.manifest)
        return {
            **to_json(self.verification),
            "next": self.next,
            "dry_run": False,
            "manifest": manifest,
            "seconds": round(self.seconds, 3),
        }


@takes_options(VerifyKeywords)
def verify(
    path: StrPath, *, progress: ProgressWanted = None, **options: Unpack[VerifyKeywords]
) -> VerifyResult:
    """Check whether the checkpoint at `path` is whole: its structure, its bytes, its values.

    If PATH.zerotools.json exists, the checkpoint is compared with this manifest. With
    `write_manifest=True` a new manifest is written to PATH.zerotools.json if no problem was found.

    Raises:
        BadRequest: `path` does not exist, or lacks the tag or section; two options exclude each
            other; or the manifest describes another model.
        BadFile: `path` is not a checkpoint, or is so damaged that its tensors are not known.
        Unsupported: the format cannot be read.
    """
    given = bind_options(VerifyKeywords, options)
    part, against, wanted = chosen_part(given), given["against"], given["write_manifest"]
    fast, with_digests = given["fast"], wanted is not None
    budget = budget_of(given)
    began = time.monotonic()
    if fast and (against is not None or with_digests):
        raise BadRequest(
            "--fast reads no tensor data, but a manifest needs it; leave one of the two options out"
        )
    if part is not None and fast:
        raise BadRequest(
            "--fast reads no tensor data, so there are no parts to divide; leave --part out"
        )
    if part is not None and with_digests:
        raise BadRequest(
            "a manifest describes a whole checkpoint, but a part reads only some of it; leave out "
            "--part or --write-manifest"
        )
    with recording_sources(), metering(progress) as meter:
        reading = {name: given[name] for name in ("tag", "layout", "section")}
        prepared = prepare_verification(path_of(path), **reading, part=part)
        target = wanted or sidecar_of(prepared.files)
        result = partial(_result, prepared, began, _same_command(path, reading))
        if with_digests:  # checked now, because reading may take an hour
            check_manifest_target(target, prepared.files)
        if given["dry_run"]:
            return result(None, None)
        other = None
        if against is not None:
            on_disk, portion = prepared.files.on_disk, prepared.portion
            other = compared_with(against, budget, verified=on_disk, portion=portion)
        with meter(prepared.bytes_to_read, "verify") as on_bytes:
            found = carry_out(
                prepared,
                fast=fast,
                other=other,
                digests=with_digests,
                budget=budget,
                on_bytes=on_bytes,
            )
        if found.manifest is None:
            return result(found, None)
        write_digest_manifest(found.manifest, target, prepared.files)
        return result(found, target)


def _same_command(path: StrPath, reading: Mapping[str, object]) -> str:
    """Return the `zerotools verify` command for the checkpoint at `path`, with the options in
    `reading`."""
    given = ((f"--{name}", str(value)) for name, value in reading.items() if value)
    return shlex.join(["zerotools", "verify", str(path), *chain.from_iterable(given)])


def _certain_command(again: str, found: Verification, manifest: Path | None) -> str | None:
    """Return the command of a check that can prove all bytes; None if this check left no byte
    unchecked. `again` is the command of this check."""
    if found.verdict is not Soundness.UNCHECKED:
        return None
    if found.is_fast:
        return again
    if manifest is None:
        return f"{again} --write-manifest"
    is_beside = manifest == sidecar_of(found.files)
    return again if is_beside else f"{again} --against {shlex.quote(str(manifest))}"


def _result(
    prepared: ToVerify,
    began: float,
    again: str,
    found: Verification | None,
    manifest: Path | None,
) -> VerifyResult:
    origin, portion = prepared.checkpoint.origin, prepared.portion
    comparison = None if found is None else found.comparison
    written = None if found is None else found.as_written
    return VerifyResult(
        path=origin.path,
        format=origin.format,
        step=origin.step,
        verdict=None if found is None else found.verdict,
        findings=() if found is None else found.findings,
        unchecked={} if found is None else found.unchecked,
        nonfinite={} if found is None else found.nonfinite,
        tensors=sum(portion.has_name(key.name) for key in prepared.checkpoint.tensors),
        files=tuple(name for name in prepared.files.names if portion.has_file(name)),
        bytes_to_read=prepared.bytes_to_read,
        bytes_read=0 if found is None else found.bytes_read,
        fast=found is not None and found.is_fast,
        part=portion.part,
        against=None if comparison is None else comparison.path,
        record=None if written is None else written.path,
        notes=tuple(notes_on_weights(origin.notes)),
        next=None if found is None else _certain_command(again, found, manifest),
        manifest=manifest,
        dry_run=found is None,
        seconds=time.monotonic() - began,
        verification=found,
    )
