"""`zerotools diff`: compare two checkpoints and list their differences."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
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
from zerotools.cli.output.messages import print_message
from zerotools.cli.output.progress_bar import shown_progress
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import EXIT_DIFFERENCES, BadRequest
from zerotools.ops.comparison import diff_result
from zerotools.ops.comparison.diff_page_data import equal_weights
from zerotools.ops.comparison.diff_result import CheckpointDiff, RunComparison, TensorDifference
from zerotools.public.compare_checkpoints import DiffKeywords, diff, diff_series

_PATH = CheckpointPath()


@click.command("diff", cls=GroupedCommand)
@click.argument("a", type=_PATH)
@click.argument("b", type=_PATH)
@click.argument("more", type=_PATH, nargs=-1)
@options_of(DiffKeywords)
@option(
    "--top",
    group=OUTPUT,
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="List at most N tensors for each kind of difference.",
)
@html_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema zerotools.diff/1).")
def command(
    a: Path,
    b: Path,
    more: tuple[Path, ...],
    top: int,
    html: Path | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Compare the checkpoints A and B, and list their differences.

    Their formats, stages and numbers of ranks may differ, and no merged copy is written. The
    command compares the tensors and the metadata of the run: step, param groups, loss scaler,
    configuration. --html includes --changes, and accepts more than two checkpoints: each is
    compared with the next one. Exit status 1 means that the checkpoints differ, or that one has
    problems.
    """
    if html is not None:
        from zerotools.ops.picture.html_page import check_page_target, write_page

        check_page_target(html)  # checked before the files are read for an hour
        given["changes"] = True
    if more:
        return _series((a, b, *more), html, as_json, given)
    with shown_progress() as progress:
        difference = diff(a, b, progress=progress, **given)
    if html is not None:
        write_page(html, difference.to_html())
    if as_json:
        render.print_json(difference.to_json())
    else:
        render.print_lines(describe(difference, top, render.terminal_columns()))
        for note in difference.notes:
            print_message("note", note)
        for problem in difference.problems:
            print_message("warning", problem)
        if html is not None:
            click.echo(render.page_line(html))
    return 0 if difference.is_equal and not difference.problems else EXIT_DIFFERENCES


def _series(paths: Sequence[Path], html: Path | None, as_json: bool, given: dict[str, Any]) -> int:
    """Compare each checkpoint with the next one, write the result to the HTML page `html`, and
    return the exit status.
    """
    if html is None:
        raise BadRequest(
            f"more than two checkpoints ({len(paths)}) can be compared only on an HTML page; "
            "add --html FILE, or name two"
        )
    if as_json:
        raise BadRequest("--json describes two checkpoints; leave it out, or name only two")
    from zerotools.ops.picture.html_page import write_page

    with shown_progress() as progress:
        found = diff_series(paths, progress=progress, **given)
    write_page(html, found.to_html())
    for pair in found.pairs:
        render.print_lines([_verdict(pair), *_origins(pair)])
        for problem in pair.problems:
            print_message("warning", problem)
    click.echo(render.page_line(html))
    has_problems = any(pair.problems for pair in found.pairs)
    return 0 if found.is_equal and not has_problems else EXIT_DIFFERENCES


_WORDS = {
    diff_result.EQUAL: "equal, bit by bit",
    diff_result.CAST: "equal after the cast",
    diff_result.WITHIN: "within the tolerance",
    diff_result.DIFFERS: "different",
    diff_result.SHAPE: "different shape",
    diff_result.DTYPE: "types that cannot be compared",
    diff_result.UNREADABLE: "cannot be read",
    diff_result.ONLY_A: "only in A",
    diff_result.ONLY_B: "only in B",
}


def describe(difference: CheckpointDiff, top: int, columns: int | None = None) -> list[str]:
    """Return the lines to print: the verdict, the counts, then at most `top` differences of each
    kind."""
    lines = [_verdict(difference), *_origins(difference)]
    if difference.different_models is None:
        lines += ["", *_counts(difference)]
        lines += _worst(difference, top, columns)
        lines += _layers(difference)
        lines += _others(difference, top)
        lines += _run(difference.run, top)
    return [*lines, *_proposals(difference)]


def _verdict(difference: CheckpointDiff) -> str:
    """Return one line that says whether the checkpoints are equal."""
    if difference.different_models is not None:
        text = f"DIFFERENT MODELS: {render.clean(difference.different_models)}"
        return paint(text, "bad", sys.stdout)
    compared = count_text(len(difference.tensors), "tensor")
    if difference.is_equal:
        is_exact = difference.tolerance.text == "bits"
        how = "" if is_exact else f" (tolerance {difference.tolerance.text})"
        return paint(f"EQUAL: {compared}{how}", "good", sys.stdout)
    parts = []
    if difference.differing:
        parts.append(equal_weights(difference) or f"{len(difference.differing)} of {compared}")
    if difference.run is not None and difference.run.differences:
        parts.append(count_text(len(difference.run.differences), "value") + " of the run")
    return paint(f"DIFFERENT: {', '.join(parts)}", "bad", sys.stdout)


def _origins(difference: CheckpointDiff) -> list[str]:
    pairs = [("A", render.origin(difference.a)), ("B", render.origin(difference.b))]
    return render.fields(pairs, columns=render.terminal_columns())


def _counts(difference: CheckpointDiff) -> list[str]:
    counts = difference.counts
    return render.fields(
        [(_WORDS[s], f"{n}{_of_copies(difference, s)}" if n else "") for s, n in counts.items()]
    )


def _of_copies(difference: CheckpointDiff, status: str) -> str:
    copies = sum(each.is_copy for each in difference.tensors if each.status == status)
    if status != diff_result.CAST or not copies:
        return ""
    return f"; {copies} of them are 16-bit copies in one checkpoint and masters in the other"


_HEADERS = ("MAX ABS", "MAX ULP", "REL NORM", "ELEMENTS", "WHERE", "TENSOR")


def _worst(difference: CheckpointDiff, top: int, columns: int | None) -> Iterator[str]:
    """Yield the lines about the tensors with the largest distances between their values. If a name
    does not fit into its row, it is on the line below.
    """
    measured = difference.worst(len(difference.tensors))
    shown = measured[:top]
    if not shown:
        return
    yield ""
    yield f"the {len(shown)} worst of {len(measured)} tensors with different values:"
    rows = [_row(each) for each in shown]
    yield from render.table_and_remarks(_HEADERS, rows, right=_HEADERS[:4], columns=columns)


def _layers(difference: CheckpointDiff) -> Iterator[str]:
    """Yield the lines about the change of each layer, if it was measured."""
    rows = [
        (
            render.number(each.distance.relative, 3),
            render.number(each.distance.cosine, 6),
            render.UNKNOWN
            if each.distance.unchanged is None
            else f"{100 * each.distance.unchanged:.1f} %",
            each.role,
            each.layer,
        )
        for each in difference.layers
    ]
    if rows:
        yield ""
        headers = ("REL NORM", "COSINE", "UNCHANGED", "ROLE", "LAYER")
        yield from render.table(headers, rows, right=headers[:3])


def _row(each: TensorDifference) -> Sequence[str]:
    distance = each.distance
    assert distance is not None
    ulp, largest = distance.max_ulp, distance.max_abs
    is_odd = distance.unmatched > 0
    where = "" if each.where is None else f"[{', '.join(map(str, each.where))}]"
    return (
        "nan/inf" if is_odd else render.number(None if largest is None else largest.value, 3),
        render.UNKNOWN
        if ulp is None
        else f"{ulp.value:.3g}"
        if ulp.value >= 1e6
        else str(ulp.value),
        render.number(distance.relative, 3),
        f"{distance.differing} of {distance.elements}",
        where,
        _name(each),
    )


def _name(each: TensorDifference) -> str:
    return each.name if each.role == "param" else f"{each.name} ({each.role})"


def _others(difference: CheckpointDiff, top: int) -> Iterator[str]:
    """Yield the lines about differences other than values, such as missing tensors, grouped by
    kind.
    """
    for status in (diff_result.UNREADABLE, diff_result.SHAPE, diff_result.DTYPE):
        yield from _listed(_WORDS[status], _of(difference, status), top)
    yield from _cast(difference)
    for status, lacking in ((diff_result.ONLY_A, "B"), (diff_result.ONLY_B, "A")):
        found = _of(difference, status)
        roles = _lacking_roles(difference, status)
        whole = [each for each in found if each.role in roles]
        if whole:
            yield f"{_WORDS[status]}: {_by_role(whole)}; {lacking} has no tensors of these roles"
        yield from _listed(_WORDS[status], [e for e in found if e.role not in roles], top)
    if any(
        _lacking_roles(difference, status) for status in (diff_result.ONLY_A, diff_result.ONLY_B)
    ):
        yield "--role param compares the weights alone"


def _of(difference: CheckpointDiff, status: str) -> list[TensorDifference]:
    return [each for each in difference.differing if each.status == status]


def _lacking_roles(difference: CheckpointDiff, status: str) -> set[str]:
    """Return the kinds of tensors, such as `exp_avg`, that one checkpoint has and the other lacks
    completely.
    """
    found = {each.role for each in difference.tensors if each.status == status}
    return found - {each.role for each in difference.tensors if each.status != status}


def _listed(title: str, found: Sequence[TensorDifference], top: int) -> Iterator[str]:
    if not found:
        return
    yield ""
    yield f"{title}: {_by_role(found)}"
    yield from (f"  {render.clean(_detail(each))}" for each in found[:top])
    if len(found) > top:
        yield f"  ... and {len(found) - top} more (--json lists all)"


def _cast(difference: CheckpointDiff) -> Iterator[str]:
    """Yield a line for each pair of types that differ between the checkpoints, with the number of
    tensors.
    """
    counts: dict[str, int] = {}
    for each in _of(difference, diff_result.CAST):
        if each.a is not None and each.b is not None:
            types = f"{each.a.dtype} in A and {each.b.dtype} in B"
            counts[types] = counts.get(types, 0) + 1
    if counts:
        yield ""
        for types, n in counts.items():
            yield f"equal after the cast: {count_text(n, 'tensor')}, {types}"
        yield "--tolerance cast accepts them as equal"


def _by_role(found: Sequence[TensorDifference]) -> str:
    counts: dict[str, int] = {}
    for each in found:
        counts[each.role] = counts.get(each.role, 0) + 1
    return ", ".join(f"{count} {role}" for role, count in counts.items())


def _detail(each: TensorDifference) -> str:
    if each.message is not None:
        return each.message if each.name in each.message else f"{_name(each)}: {each.message}"
    if each.status == diff_result.SHAPE and each.a is not None and each.b is not None:
        return f"{_name(each)}: {list(each.a.shape)} in A and {list(each.b.shape)} in B"
    if each.a is not None and each.b is not None:
        return f"{_name(each)}: {each.a.dtype} in A and {each.b.dtype} in B"
    described = each.a or each.b
    assert described is not None, "a tensor is in only one of the two"
    return f"{_name(each)}: {described.dtype} {list(described.shape)}"


def _run(run: RunComparison | None, top: int) -> Iterator[str]:
    if run is None:
        return
    if run.differences:
        yield ""
        yield "training state, in A and in B:"
        for point in run.differences[:top]:
            of = f" ({count_text(point.params, 'parameter')})" if point.params else ""
            yield f"  {render.clean(f'{point.what}: {_value(point.a)} and {_value(point.b)}{of}')}"
        if len(run.differences) > top:
            yield f"  ... and {len(run.differences) - top} more (--json lists all)"
    for word, said in (("A", run.only_a), ("B", run.only_b)):
        if said:
            more = f", and {len(said) - _MOST_SAID} more" if len(said) > _MOST_SAID else ""
            yield f"only in {word}: {render.clean(', '.join(said[:_MOST_SAID]))}{more}"


_MOST_SAID = 8
_LONGEST_VALUE = 60


def _value(value: Any) -> str:
    return render.shorten(str(value), _LONGEST_VALUE)


def _proposals(difference: CheckpointDiff) -> Iterator[str]:
    for rule, names in difference.proposals.items():
        yield f"--rename '{render.clean(rule)}' would match {count_text(names, 'more weight')}"
