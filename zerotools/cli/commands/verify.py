"""`zerotools verify`: whether a checkpoint is whole."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from zerotools.cli.options.checkpoint_path import CheckpointPath
from zerotools.cli.options.part_options import part_options
from zerotools.cli.options.shared import layout_option, section_option, tag_option
from zerotools.cli.options.sizes import ByteSize
from zerotools.cli.output import render
from zerotools.cli.output.progress_bar import progress
from zerotools.cli.output.style import paint
from zerotools.core.counts import counted
from zerotools.core.errors import EXIT_DIFFERENCES, EXIT_DONE, BadRequest
from zerotools.io.files.sources import recording
from zerotools.ops.execution.parts.share import OutputPart
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.verification.against import against as compared_with
from zerotools.ops.verification.all_checks import OF_ANY_SAVE
from zerotools.ops.verification.findings import Check, Soundness, Verification
from zerotools.ops.verification.manifests.digest_manifest import (
    check_manifest_target,
    sidecar_of,
    write_digest_manifest,
)
from zerotools.ops.verification.records import NO_CHECKSUMS
from zerotools.ops.verification.verification_json import to_json
from zerotools.ops.verification.verify import ToVerify, prepare, verify

MAX_FINDINGS = 20
MAX_NAMED = 4
_PARTS_TO_COME = "what the whole checkpoint is, the exit statuses of all parts say together"
BESIDE = ""
"""For `--write-manifest` without a file."""


@click.command("verify")
@click.argument("path", type=CheckpointPath())
@tag_option
@layout_option
@section_option
@click.option(
    "--against",
    type=CheckpointPath(),
    metavar="MANIFEST|PATH",
    help="Compare with a manifest, or with another checkpoint of any format.",
)
@click.option(
    "--write-manifest",
    is_flag=False,
    flag_value=BESIDE,
    metavar="[FILE]",
    help="Write the digests of tensors and files.  [FILE: PATH.zerotools.json]",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with status 1 also if nothing is wrong, and not all can be checked.",
)
@click.option("--fast", is_flag=True, help="Look at the structure alone; read no tensor data.")
@click.option(
    "--workers", type=int, default=None, help="Threads. Default: one per core, at most 8."
)
@click.option(
    "--max-memory",
    type=ByteSize(),
    default="256MiB",
    show_default=True,
    help="Memory for the buffers of all workers together.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be read, and read no tensor data.")
@part_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema zerotools.verify/1).")
@recording()  # a file that changes between two looks at it is named
def command(
    path: Path,
    tag: str | None,
    layout: Path | None,
    section: str | None,
    against: Path | None,
    write_manifest: str | None,
    strict: bool,
    fast: bool,
    workers: int | None,
    max_memory: int,
    dry_run: bool,
    as_json: bool,
    part: OutputPart | None,
) -> int:
    """Check whether the checkpoint at PATH is whole: its structure, its bytes, its numbers.

    A manifest that lies beside it as PATH.zerotools.json is compared with it. Exit status 1 means
    that something is wrong. Status 0 means that nothing was found; whether all bytes could be
    checked, the first line says, and with --strict the exit status. With --part, N runs on any
    machines share the reading, and the checkpoint is whole where all of them say so.
    """
    budget = MemoryBudget(max_memory) if workers is None else MemoryBudget(max_memory, workers)
    began, digests = time.monotonic(), write_manifest is not None
    if fast and (against is not None or digests):
        raise BadRequest("--fast reads no data, and a manifest needs it; leave one of them out")
    if fast and strict:
        raise BadRequest(
            "--fast leaves bytes out, so --strict can never be met; leave one of them out"
        )
    if part is not None and (fast or digests):
        raise BadRequest(
            "--fast reads no data that could be divided; leave --part out"
            if fast
            else "a manifest is of a whole checkpoint, and no part reads it all; leave --part out"
        )
    given = prepare(path, tag=tag, layout=layout, section=section, part=part)
    target = Path(write_manifest) if write_manifest else sidecar_of(given.files)
    if digests:  # before an hour of reading
        check_manifest_target(target, given.files)
    if dry_run:
        _say_plan(given, as_json)
        return EXIT_DONE
    other = (
        None
        if against is None
        else compared_with(against, budget, verified=given.files.on_disk, portion=given.portion)
    )
    with progress(given.bytes_to_read, "verify") as on_bytes:
        found = verify(
            given,
            fast=fast,
            other=other,
            digests=digests,
            budget=budget,
            on_bytes=on_bytes,
        )
    written = None
    if found.manifest is not None:
        written = target
        write_digest_manifest(found.manifest, written, given.files)
    if as_json:
        seconds = round(time.monotonic() - began, 3)
        manifest = None if written is None else str(written)
        render.print_json(
            {**to_json(found), "dry_run": False, "manifest": manifest, "seconds": seconds}
        )
    else:
        render.print_lines(list(describe(found)))
        if written is not None:
            click.echo(f"wrote {written}")
        elif digests:
            click.echo("no manifest was written: it would have what is wrong in it")
    is_enough = found.is_whole or not (strict or found.verdict is Soundness.FAULTY)
    return EXIT_DONE if is_enough else EXIT_DIFFERENCES


def _say_plan(given: ToVerify, as_json: bool) -> None:
    part, path = given.portion.part, str(given.checkpoint.origin.path)
    files = [name for name in given.files.names if given.portion.has_file(name)]
    if as_json:
        render.print_json(
            {
                "dry_run": True,
                "path": path,
                "part": part.index,
                "parts": part.of,
                "bytes_to_read": given.bytes_to_read,
                "files": files,
            }
        )
        return
    whole = render.clean(path) if part.of == 1 else f"{part} of {render.clean(path)}"
    click.echo(
        f"would read {whole}: {counted(len(files), 'file')}, {render.size(given.bytes_to_read)}"
    )


def describe(found: Verification) -> Iterator[str]:
    """Lines for people, what it comes to first."""
    path = render.clean(str(found.checkpoint.origin.path))
    portion = found.portion
    keys = [key for key in found.checkpoint.tensors if portion.has_name(key.name)]
    names = [name for name in found.files.names if portion.has_file(name)]
    tensors = counted(len(keys), "tensor")
    files = f"{counted(len(names), 'file')}, {render.size(found.bytes_read)} read"
    if portion.part.of > 1:
        path = f"{portion.part} of {path}"
    if found.verdict is Soundness.FAULTY:
        count = counted(len(found.findings), "finding")
        yield paint(f"FAULTY: {path}: {count}", "bad", sys.stdout)
    elif found.is_fast:
        yield f"{path}: nothing wrong in the structure of {tensors}; bytes were left out (--fast)"
    elif found.verdict is Soundness.UNCHECKED:
        yield f"{path}: nothing wrong found in {tensors} ({files}), but not all can be checked"
    else:
        yield f"{path} is whole: {tensors} ({files})"
    for finding in found.findings[:MAX_FINDINGS]:
        yield f"{finding.check.value}: {render.clean(finding.message)}"
    if len(found.findings) > MAX_FINDINGS:
        yield f"... and {len(found.findings) - MAX_FINDINGS} more findings (--json lists all)"
    yield from _compared(found)
    yield from _unchecked(found)
    if portion.part.of > 1:
        yield f"this is {portion.part}: {_PARTS_TO_COME}"
    named = {finding.tensor for finding in found.findings}
    odd = [key for key in found.odd if key not in named]
    if odd:
        yield f"note: {_some([str(key) for key in odd])}: values that are not finite, as in masks"
    for note in found.checkpoint.origin.notes:
        yield f"note: {render.clean(note)}"


def _compared(found: Verification) -> Iterator[str]:
    comparison, written = found.comparison, found.as_written
    is_as_said = not any(finding.check is Check.MANIFEST for finding in found.findings)
    if written is not None and is_as_said:
        yield (
            f"{counted(len(written.vouched), 'file')} as recorded in "
            f"{render.clean(str(written.path))} when written"
        )
    if comparison is None:
        return
    if is_as_said:
        what = "all files are" if comparison.by_files else counted(comparison.tensors, "tensor")
        rest = "those" if comparison.by_files else "with the values"
        yield f"{what} {rest} of {render.clean(str(comparison.path))}"
    for note in comparison.notes:
        yield f"note: {render.clean(note)}"


def _unchecked(found: Verification) -> Iterator[str]:
    unsure = [name for name, why in found.unchecked.items() if why == OF_ANY_SAVE]
    essential = [name for name in found.unchecked if name in found.files.essential]
    known = (OF_ANY_SAVE, NO_CHECKSUMS)
    doubts = [name for name in essential if found.unchecked[name] not in known]
    essential = [name for name in essential if name not in unsure and name not in doubts]
    if unsure:
        yield (
            "without a manifest nothing tells whether all are of one save: "
            f"{counted(len(unsure), 'file')}: {_some(unsure)}"
        )
    for name in doubts[:MAX_NAMED]:
        yield f"cannot be told: {render.clean(found.unchecked[name])}"
    if len(doubts) > MAX_NAMED:
        yield f"cannot be told either, in {counted(len(doubts) - MAX_NAMED, 'file')} more"
    others = [name for name in found.unchecked if name not in found.files.essential]
    if essential:
        yield (
            "bytes cannot be checked: no checksums and no manifest, in "
            f"{counted(len(essential), 'file')}: {_some(essential)}"
        )
    if others:
        yield f"note: not checked, as nothing of the run is in them: {_some(others)}"


def _some(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    shown = ", ".join(map(render.clean, names[:MAX_NAMED]))
    return shown + (f" and {more} more" if more > 0 else "")
