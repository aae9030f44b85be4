"""The page of `zerotools estimate`: the verdict, the configurations that fit, and the memory of the
cheapest configuration.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from zerotools.cli.output import render
from zerotools.cli.output.colours import paint
from zerotools.cli.output.language import has_wide, translated, wrap_wide
from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs.memory_estimates.training_estimate import Estimate
from zerotools.jobs.memory_estimates.write_configs import keys_text
from zerotools.ops.estimate.fit_search import FitChange, Way, joined_with_and
from zerotools.ops.estimate.offload_table import Row
from zerotools.ops.estimate.rank_memory import NOT_MEASURED

_COLUMNS = 80
MOST_WAYS = 8
"""The largest number of configurations on the page. The JSON has all of them."""


def page(found: Estimate) -> list[str]:
    """Return the lines to print: the verdict, the configurations that fit, a table of all stages,
    and the parts of the memory."""
    lines = wrapped(verdict(found))
    lines += [*([] if found.assumed is None else wrapped(translated(found.assumed))), ""]
    ways = _list_changes(found)
    lines += [*ways, ""] if ways else []
    lines += [*_head(found), "", *_table(found), ""]
    best = found.search.best
    if found.asked is not None:
        lines += [*wrapped(_describe_as_written(found, found.asked)), ""]
    lines += wrapped(found.choice.reason)
    for each in found.choice.advice:
        lines += wrapped(each)
    batch, sequence = found.choice.largest_batch, found.choice.largest_sequence
    if best is not None and batch and sequence and best.work.micro is not None:
        at_a_time = f"{count_text(batch, 'sequence')} of {_tokens(best.work.micro.sequence)}"
        lines += wrapped(
            f"with these settings, {at_a_time} {'fits' if batch == 1 else 'fit'} at a time, or one "
            f"sequence of {_tokens(sequence)}"
        )
    shown = found.asked or found.choice.row
    if shown is not None:
        lines += ["", *_terms(found, shown)]
    lines += [
        part for note in found.notes if note != found.assumed for part in wrapped(f"note: {note}")
    ]
    return lines


def verdict(found: Estimate) -> str:
    """Return one sentence in the language of the user. It says whether the training fits, and with
    which changes.
    """
    return translated(_verdict(found))


def _verdict(found: Estimate) -> str:
    model, best = _name(found.work.model.source), found.search.best
    at_least = "" if found.work.model.architecture is not None else ", not counting activations"
    if found.asked is not None and found.asked.fits is not False:
        return f"yes: the job fits as it is written{at_least}"
    if best is None:
        some = f"; {count_text(len(found.ways), 'other choice')} would fit" if found.ways else ""
        return f"no: {found.choice.reason}{some}"
    stage = f"stage {best.row.stage}"
    needs = f"with {_changes(best)}, at {stage}" if best.changes else f"at {stage}"
    if found.asked is not None:
        return f"no: the job does not fit as it is written; it fits {needs}{at_least}"
    return f"yes: {model} fits {needs}{at_least}"


def _changes(way: Way) -> str:
    words = way.change_words
    in_language = [translated(each) for each in words]
    return joined_with_and(words) if in_language == words else "、".join(in_language)


def _name(source: str) -> str:
    """Return the name of a model. `source` is the path of its directory or of its config.json."""
    path = Path(source)
    return (path.parent.name if path.name == "config.json" else path.name) or source


def _list_changes(found: Estimate) -> list[str]:
    ways = found.ways
    if not ways or (len(ways) == 1 and not ways[0].changes and found.fits):
        return []
    fits_as_written = found.asked is not None and found.fits
    title = (
        "faster settings that also fit:"
        if fits_as_written
        else "changes that make it fit, the cheapest first:"
    )
    if fits_as_written and not _is_faster(found):
        return []
    lines = [translated(title)]
    for number, way in enumerate(ways[:MOST_WAYS], 1):
        row = way.row
        places = [f"{row.peak_bytes / 2**30:.1f} GiB on each GPU"] if found.machine.on_gpu else []
        places.append(f"{row.host_bytes / 2**30:.1f} GiB of host memory")
        if way.disk_bytes:
            places.append(f"{way.disk_bytes / 2**30:.1f} GiB of disk")
        what = _changes(way) or f"stage {row.stage}"
        slow = translated(way.slowdown.words)
        if not way.is_as_asked and FitChange.LORA in way.changes:
            slow += translated("; trains adapters, not all weights")
        lines += _indented(f"{number}. {what} ({slow})", "")
        lines += _indented(", ".join(map(translated, places)), "   ")
        keys = keys_text(found.keys_of(way))
        lines += textwrap.wrap(
            render.clean(keys),
            _COLUMNS,
            initial_indent="   ",
            subsequent_indent="     ",
            break_on_hyphens=False,
        )
    return lines


def _is_faster(found: Estimate) -> bool:
    best, asked = found.search.best, found.asked
    return best is not None and asked is not None and best.row.layout != asked.layout


def _head(found: Estimate) -> Iterator[str]:
    work, machine = found.work, found.machine
    trained = sum(p.numel for p in work.model.parameters if p.is_trained)
    count = f"{work.model.count:,} parameters"
    if trained < work.model.count:
        count += f", {trained:,} of them trained"
    yield render.clean(f"{work.model.source}: {count}")
    yield f"{work.layout.precision}, {work.layout.optimizer}, engine {work.layout.engine}"
    where = count_text(machine.gpus, "GPU")
    where += f" of {render.gib(machine.gpu_memory)} GiB" if machine.on_gpu else ""
    if not machine.on_gpu:
        where = f"{count_text(machine.gpus, 'rank')} on the CPU"
    if machine.gpus > machine.ranks_of_node and machine.node_ranks is not None:
        where += f", {machine.node_ranks} on each of {machine.gpus // machine.node_ranks} nodes"
    yield f"{where}, host memory {render.gib(machine.host_memory)} GiB"
    if work.micro is not None:
        micro = work.micro
        again = ", activation checkpointing" if micro.checkpointing else ""
        each = count_text(micro.batch, "sequence")
        if micro.sequence_ranks > 1:
            again = f", divided among {micro.sequence_ranks} ranks{again}"
        if micro.tensor_ranks > 1:
            again += f", {micro.tensor_ranks} ranks for each layer"
        who = "each GPU" if machine.on_gpu else "each rank"
        yield f"{who} computes {each} of {_tokens(micro.sequence)} at a time{again}"


def _tokens(count: int) -> str:
    return f"{count:,} {'token' if count == 1 else 'tokens'}"


def _table(found: Estimate) -> list[str]:
    def fits(cell: str) -> str:
        meaning = "good" if cell.startswith("yes") else "bad" if cell.startswith("no") else "quiet"
        return paint(cell, meaning, sys.stdout)

    rows = [
        (
            str(row.stage),
            row.offload,
            f"{row.memory.peak / 2**30:.1f}" + ("" if row.memory.knows_activations else "+"),
            f"{row.host_bytes / 2**30:.1f}",
            _fits(found, row),
        )
        for row in found.rows
    ]
    each = "GPU GiB" if found.machine.on_gpu else "rank GiB"
    headers = ("stage", "offload", each, "host GiB", "fits")
    return render.table(headers, rows, right=headers[2:4], paint={"fits": fits})


def _fits(found: Estimate, row: Row) -> str:
    if row.fits is None:
        return "without activations"
    said = "yes" if row.fits else "no"
    best = found.search.best
    if best is None or row.layout != best.row.layout or best.work.micro != found.work.micro:
        return said
    return f"{said}  <- fastest"


def _describe_as_written(found: Estimate, row: Row) -> str:
    does = {True: "fits", False: "does not fit", None: "fits without activations"}[row.fits]
    return (
        f"as it is written (stage {row.stage}, offload {row.offload}) it takes "
        f"{row.memory.peak / 2**30:.1f} GiB of a GPU and {row.host_bytes / 2**30:.1f} GiB of the "
        f"host: it {does}"
        if found.machine.on_gpu
        else f"as it is written (stage {row.stage}, offload {row.offload}) it takes "
        f"{row.host_bytes / 2**30:.1f} GiB of the host: it {does}"
    )


def _terms(found: Estimate, row: Row) -> Iterator[str]:
    memory = row.memory
    yield f"stage {row.stage}, offload {row.offload}: memory of one rank, in GiB"
    rows = []
    for name in dict.fromkeys((*memory.device, *memory.host)):
        device, host = memory.device.get(name, 0), memory.host.get(name, 0)
        if device or host:
            remark = "not measured" if name in NOT_MEASURED else ""
            rows.append((name, _gib(device), _gib(host), remark))
    if not memory.knows_activations:
        rows.append(("activations", "unknown", "", ""))
    rows.append(("most at a time", _gib(memory.peak), _gib(memory.host_total), ""))
    where = "GPU" if found.machine.on_gpu else "device"
    yield from render.table(("", where, "host", " "), rows, right=(where, "host"), indent=2)


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f}" if count else ""


def wrapped(text: str) -> list[str]:
    """Return the sentence as lines of at most 80 columns."""
    if has_wide(text):
        return wrap_wide(render.clean(text), _COLUMNS, first="", later="  ")
    return textwrap.wrap(
        render.clean(text), _COLUMNS, subsequent_indent="  ", break_on_hyphens=False
    )


def _indented(text: str, first: str) -> list[str]:
    if has_wide(text):
        return wrap_wide(text, _COLUMNS, first=first, later="   ")
    return textwrap.wrap(text, _COLUMNS, initial_indent=first, subsequent_indent="   ")
