"""Write the report on an import: the outcome of every key of a config, as text and as JSON."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.text.config_document import Document


class KeyOutcome(StrEnum):
    """The outcome of one key of a config. Reports list the outcomes in the order of this enum."""

    MAPPED = "mapped"
    DEFAULT = "default"
    PASSED = "passed through"
    IGNORED = "ignored"
    UNKNOWN = "unknown"


WIDTH = 80
"""The width of a report line in columns. A line is wider only if it consists of one longer word."""
FIRST, LATER = "#   ", "#     "
AUTO_WHY = '"auto"'
AUTO_BECAME = '"auto" became'
NOT_TAKEN = "not taken: "
USUAL = "default"
_IN_FILE = (KeyOutcome.MAPPED, KeyOutcome.DEFAULT)
_ON_LINE = re.compile(r"(.*):(\d+): (.*)")
HEADS = {
    KeyOutcome.MAPPED: "mapped to keys of the job file",
    KeyOutcome.DEFAULT: "not in the config: defaults, written out",
    KeyOutcome.PASSED: "passed through to DeepSpeed",
    KeyOutcome.IGNORED: "ignored",
    KeyOutcome.UNKNOWN: "unknown, not read",
}


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(
        line,
        WIDTH,
        initial_indent=FIRST,
        subsequent_indent=LATER,
        break_long_words=False,
        break_on_hyphens=False,
    )


@dataclass(frozen=True)
class Wording:
    """The language of a report.

    `translated` translates a sentence. `wrapped` translates a sentence and returns it as lines: the
    first line begins with `FIRST`, and the other lines begin with `LATER`.
    """

    translated: Callable[[str], str] = str
    wrapped: Callable[[str], Iterable[str]] = _wrapped


ENGLISH = Wording()


@dataclass(frozen=True)
class ReportRow:
    """One key of a config in the report: its position, its value, and its outcome.

    `job` is the key of the job file that got the value; `why` is a remark for the user.
    """

    outcome: KeyOutcome
    key: str
    place: str
    value: Any
    job: str | None = None
    why: str = ""


@dataclass(frozen=True)
class ResolvedAuto:
    """A key with the value `"auto"`: the value that replaced it, and the source of this value."""

    key: str
    place: str
    value: Any
    origin: str


@dataclass
class Findings:
    """The results of the readers of configs. Each reader adds to these lists.

    Attributes:
        rows, autos: the outcome of each key, and the values that replaced `"auto"`.
        wrong: errors.
        unsupported: settings that jobs do not support.
        repairs: the corrections of `--lenient`.
        repaired: file name -> the corrected text of the file.
        differences: differences between training by the job and training by the program.
        steps: the things that the user has to do before the job can run.
    """

    rows: list[ReportRow] = field(default_factory=list)
    autos: list[ResolvedAuto] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    repaired: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def extend(self, others: Findings) -> None:
        """Add all findings in `others` to this object."""
        for name in ("rows", "autos", "repairs", "wrong", "unsupported", "differences", "steps"):
            getattr(self, name).extend(getattr(others, name))
        self.repaired |= others.repaired

    def to_json(self) -> dict[str, Any]:
        """Return everything except errors and unsupported settings, as JSON values."""
        return {
            "keys": [{**asdict(row), "outcome": row.outcome.value} for row in self.rows],
            "auto": [asdict(auto) for auto in self.autos],
            "accepted": self.repairs,
            "mended": self.repaired,
            "differs": self.differences,
            "next": self.steps,
        }


def add_repairs(findings: Findings, document: Document) -> None:
    """Add the corrections that `--lenient` made in `document` to the findings."""
    findings.repairs += document.accepted
    if document.mended is not None:
        findings.repaired[document.source] = document.mended


def report_lines(
    findings: Findings, *, written: bool = False, wording: Wording = ENGLISH
) -> Iterator[str]:
    """Yield the lines of the report.

    Each line begins with `#`, so that a TOML file may contain it.

    Keys with the same outcome and reason share a line. `written` is true if a job file with the
    source of every key is also printed. Then the report leaves out keys, defaults and reasons that
    the job file shows. If `findings` has problems, there is no report, because the problems are
    printed instead. Headlines and fixed sentences are in the language of `wording`; names of keys
    and reasons of single keys are not translated.
    """
    translate = wording.translated
    if findings.wrong or findings.unsupported:
        return
    if findings.repairs:
        yield f"# {translate('repaired, as --lenient does')}"
        yield from _listed(_by_file(findings.repairs, wording), wording)
    for source, text in findings.repaired.items():
        yield f"# {translate(f'{_printable(source)}, with these repairs:')}"
        lines = text.expandtabs().strip("\n").split("\n")
        yield from (f"#   {_printable(line)}".rstrip() for line in lines)
    if findings.autos and not written:
        yield f"# {translate(AUTO_BECAME)}"
        values = ", ".join(f"{a.key} = {_value(a.value)}" for a in findings.autos)
        yield from _listed([values], wording)
    for outcome, head in HEADS.items():
        rows = [row for row in findings.rows if row.outcome is outcome]
        lines = [*(_in_short(rows) if written else _with_reasons(rows))]
        if lines:
            yield f"# {translate(head)}"
            yield from _listed(lines, wording)
    if findings.differences:
        yield f"# {translate('differences between the job and the program')}"
        yield from _listed(findings.differences, wording)


def next_steps(
    findings: Findings, closing: Iterable[str] = (), wording: Wording = ENGLISH
) -> Iterator[str]:
    """Yield lines that say what the user has to do before the job can run, and then the lines
    in `closing`.
    """
    steps = [*findings.steps, *closing]
    if steps:
        yield f"# {wording.translated('next')}"
        yield from _listed(steps, wording)


def _with_reasons(rows: Sequence[ReportRow]) -> Iterator[str]:
    """Yield the report's lines for the rows of one outcome.

    Rows with the same reason share a line.
    """
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(row.why if row.why != AUTO_WHY else "", []).append(_named(row))
    for why, names in groups.items():
        yield f"{', '.join(dict.fromkeys(names))}{f': {why}' if why else ''}"


def _in_short(rows: Sequence[ReportRow]) -> Iterator[str]:
    """Yield remarks about the rows of one outcome, but only remarks that the job file does not
    show: why values were changed, and which keys were omitted.
    """
    shown = [row for row in rows if row.outcome is not KeyOutcome.IGNORED and _has_more_detail(row)]
    yield from _with_reasons(shown)
    names = [row.key for row in rows if row.outcome not in _IN_FILE and row not in shown]
    if names:
        reasons = "" if rows[0].outcome is KeyOutcome.UNKNOWN else " (reasons: --json)"
        yield f"{', '.join(_without_tables(dict.fromkeys(names)))}{reasons}"


def _has_more_detail(row: ReportRow) -> bool:
    """Return whether the reason in `row` contains more than the comment in the job file."""
    is_usual = row.why.startswith(NOT_TAKEN) or row.why.endswith(USUAL)
    return row.why not in ("", AUTO_WHY) and not (row.outcome is KeyOutcome.DEFAULT and is_usual)


def _without_tables(names: Iterable[str]) -> Iterator[str]:
    """Yield the names of keys in a short form.

    A key in the same table as the previous key is written without the name of the table, such as
    `.steps`.
    """
    before = ""
    for name in names:
        table = name.rpartition(".")[0]
        yield name.removeprefix(table) if table and table == before else name
        before = table


def _named(row: ReportRow) -> str:
    if row.job is None or row.job == row.key:
        return row.key
    if row.outcome is KeyOutcome.DEFAULT:
        return f"{row.job} = {_value(row.value)}"
    return f"{row.key} -> {row.job}"


def _listed(lines: Iterable[str], wording: Wording) -> Iterator[str]:
    """Yield the lines as the items of a list. A line that is wider than WIDTH is wrapped and
    indented."""
    for line in lines:
        yield from wording.wrapped(wording.translated(_printable(line)))


def _by_file(notes: Sequence[str], wording: Wording) -> Iterator[str]:
    """Yield one text for each file: each kind of correction with its line numbers. Other notes are
    yielded as they are."""
    files: dict[str, list[tuple[int, str]]] = {}
    for note in notes:
        found = _ON_LINE.fullmatch(note)
        if found is None:
            yield note
        else:
            files.setdefault(found[1], []).append((int(found[2]), found[3]))
    for source, mends in files.items():
        yield f"{source}: {by_kind(mends, wording)}"


def by_kind(mends: Iterable[tuple[int, str]], wording: Wording = ENGLISH) -> str:
    """Return the corrections as text, with the line numbers of each kind of correction.

    `mends` has pairs of line number and kind.
    """
    kinds: dict[str, list[int]] = {}
    for line, what in mends:
        kinds.setdefault(what, []).append(line)
    translate = wording.translated
    told = ((translate(what), _on_lines(lines, translate)) for what, lines in kinds.items())
    return "; ".join(f"{what} ({where})" for what, where in told)


def _on_lines(lines: list[int], translate: Callable[[str], str]) -> str:
    if len(lines) == 1:
        return translate(f"line {lines[0]}")
    spans: list[list[int]] = []
    for line in lines:
        if spans and line == spans[-1][1] + 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    shown = [str(begin) if begin == end else translate(f"{begin} to {end}") for begin, end in spans]
    return translate(f"{len(lines)} lines: {', '.join(shown)}")


def _value(value: Any) -> str:
    return format_value(value) if value is not None else "-"


def _printable(text: str) -> str:
    """Return the text as one line, without characters that a TOML comment may not contain."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()
