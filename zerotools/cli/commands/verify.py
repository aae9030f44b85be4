"""`zerotools verify`: check whether a checkpoint is whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from zerotools.cli.options.click_options import (
    OUTPUT,
    CheckpointPath,
    GroupedCommand,
    html_option,
    option,
    options_of,
)
from zerotools.cli.output import render
from zerotools.cli.output.colours import paint
from zerotools.cli.output.progress_bar import shown_progress
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import EXIT_DIFFERENCES, EXIT_DONE, BadRequest
from zerotools.formats.torch_optimizers import notes_on_weights
from zerotools.ops.inspection.completeness import grouped_faults
from zerotools.ops.verification.checkpoint_files import NO_CHECKSUMS
from zerotools.ops.verification.verification_result import Check, Soundness, Verification
from zerotools.ops.verification.verify import OF_ANY_SAVE
from zerotools.public.verify_checkpoint import VerifyKeywords, VerifyResult, verify

MAX_FINDINGS = 20
MAX_NAMED = 4
_PARTS_TO_COME = "the checkpoint is whole only if the last line of every part is WHOLE"


@click.command("verify", cls=GroupedCommand)
@click.argument("path", type=CheckpointPath())
@options_of(VerifyKeywords)
@option(
    "--strict",
    group=OUTPUT,
    is_flag=True,
    help="Exit with status 1 also if a part of the checkpoint cannot be checked.",
)
@html_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema zerotools.verify/1).")
def command(path: Path, strict: bool, html: Path | None, as_json: bool, **given: Any) -> int:
    """Check whether the checkpoint at PATH is whole: its structure, its bytes, its values.

    If PATH.zerotools.json exists, the checkpoint is compared with that manifest. The last line is
    WHOLE, DAMAGED (exit status 1) or CANNOT TELL. CANNOT TELL means that no problem was found, but
    some bytes are unchecked; the exit status is then 0, or 1 with --strict. With --part, N runs on
    any machines share the reading; the checkpoint is whole if every run says WHOLE.
    """
    if given["fast"] and strict:
        raise BadRequest(
            "--fast does not check bytes, so --strict always fails; leave one of them out"
        )
    if html is not None:
        from zerotools.ops.picture.html_page import check_page_target, write_page

        if given["dry_run"]:
            raise BadRequest("--dry-run checks nothing, and a page needs a check; leave out --html")
        check_page_target(html)  # checked before the file is read for an hour
    with shown_progress() as progress:
        found = verify(path, progress=progress, **given)
    if html is not None:
        write_page(html, found.to_html())
    if as_json:
        render.print_json(found.to_json())
    elif found.verification is None:
        click.echo(_plan_line(found))
    else:
        columns = render.terminal_columns()
        for line in describe(found.verification):
            render.print_lines(render.folded(line, columns, 4))
        if found.manifest is not None:
            click.echo(f"wrote {found.manifest}")
        elif given["write_manifest"] is not None:
            click.echo("no manifest was written, because the checkpoint is damaged")
        if found.next is not None:
            line = f"next: {render.clean(found.next)} ({_why(found)})"
            render.print_lines(render.folded(line, columns, 4))
        if html is not None:
            click.echo(render.page_line(html))
        click.echo(found.verification.verdict.conclusion)
    is_faulty = found.verdict is Soundness.FAULTY
    is_short = strict and not (found.is_whole or found.dry_run)
    return EXIT_DIFFERENCES if is_faulty or is_short else EXIT_DONE


def _why(found: VerifyResult) -> str:
    if found.fast:
        return "reads the bytes too"
    if found.manifest is not None:
        return "compares with the manifest that was written"
    return "records digests, so that later checks cover every byte"


def _plan_line(found: VerifyResult) -> str:
    path = render.clean(str(found.path))
    whole = path if found.part.of == 1 else f"{found.part} of {path}"
    files = count_text(len(found.files), "file")
    return f"would read {whole}: {files}, {render.size(found.bytes_to_read)}"


def describe(found: Verification) -> Iterator[str]:
    """Yield the lines to print, beginning with the verdict."""
    path = render.clean(str(found.checkpoint.origin.path))
    portion = found.portion
    keys = [key for key in found.checkpoint.tensors if portion.has_name(key.name)]
    names = [name for name in found.files.names if portion.has_file(name)]
    tensors = count_text(len(keys), "tensor")
    files = f"{count_text(len(names), 'file')}, {render.size(found.bytes_read)} read"
    if portion.part.of > 1:
        path = f"{portion.part} of {path}"
    if found.verdict is Soundness.FAULTY:
        count = count_text(len(found.findings), "finding")
        yield paint(f"DAMAGED: {path}: {count}", "bad", sys.stdout)
    elif found.is_fast:
        yield f"{path}: no problem in the structure of {tensors}; bytes were not checked (--fast)"
    elif found.verdict is Soundness.UNCHECKED:
        yield (
            f"{path}: no problem found in {tensors} ({files}), but not everything can be checked"
        )
    else:
        yield f"{path} is whole: {tensors} ({files})"
    own, consequences = grouped_faults(found.findings)
    for finding in own[:MAX_FINDINGS]:
        yield f"{finding.check.value}: {render.clean(finding.message)}"
    if len(own) > MAX_FINDINGS:
        yield f"... and {len(own) - MAX_FINDINGS} more findings (--json lists all)"
    if consequences is not None:
        yield f"affected: {render.clean(consequences)}"
    yield from _compared(found)
    yield from _unchecked(found)
    if portion.part.of > 1:
        yield f"this is {portion.part}: {_PARTS_TO_COME}"
    named = {finding.tensor for finding in found.findings}
    nonfinite = [key for key in found.nonfinite if key not in named]
    if nonfinite:
        some = _some([str(key) for key in nonfinite])
        yield f"note: infinite or NaN values, such as those of masks, are in {some}"
    for note in notes_on_weights(found.checkpoint.origin.notes):
        yield f"note: {render.clean(note)}"


def _compared(found: Verification) -> Iterator[str]:
    comparison, written = found.comparison, found.as_written
    is_as_said = not any(finding.check is Check.MANIFEST for finding in found.findings)
    if written is not None and is_as_said:
        yield (
            f"{count_text(len(written.vouched), 'file')} did not change after the save, according "
            f"to {render.clean(str(written.path))}"
        )
    if comparison is None:
        return
    if is_as_said:
        tensors = count_text(comparison.tensors, "tensor")
        what = "all files are as in" if comparison.by_files else f"{tensors} with the values of"
        yield f"{what} {render.clean(str(comparison.path))}"
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
            "without a manifest, these files may be from different saves: "
            f"{count_text(len(unsure), 'file')}: {_some(unsure)}"
        )
    for name in doubts[:MAX_NAMED]:
        yield f"unknown: {render.clean(found.unchecked[name])}"
    if len(doubts) > MAX_NAMED:
        yield f"unknown in {len(doubts) - MAX_NAMED} more files"
    others = [name for name in found.unchecked if name not in found.files.essential]
    if essential:
        yield (
            "bytes cannot be checked (no checksums and no manifest) in "
            f"{count_text(len(essential), 'file')}: {_some(essential)}"
        )
    if others:
        yield f"note: not checked, because they hold no data of the run: {_some(others)}"


def _some(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    shown = ", ".join(map(render.clean, names[:MAX_NAMED]))
    return shown + (f" and {more} more" if more > 0 else "")
