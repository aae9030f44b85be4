"""What became of every key of a config, for people and for programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from zerotools.jobs.binding.bind import show
from zerotools.jobs.text.document import Document


class KeyOutcome(StrEnum):
    """What became of one key, in the order in which a report lists them."""

    MAPPED = "mapped"
    DEFAULT = "default"
    PASSED = "passed through"
    IGNORED = "ignored"
    UNKNOWN = "unknown"


_ON_LINE = re.compile(r"(.*):(\d+): (.*)")
HEADS = {
    KeyOutcome.MAPPED: "mapped to keys of the job file",
    KeyOutcome.DEFAULT: "not in the config: its launcher's defaults, written out",
    KeyOutcome.PASSED: "passed through to DeepSpeed",
    KeyOutcome.IGNORED: "ignored",
    KeyOutcome.UNKNOWN: "unknown, not read",
}


@dataclass(frozen=True)
class ReportRow:
    """One key of a config: where it stands, its value, and what came of it.

    `job` is the key of the job file that has it now; `why` says what the reader should know.
    """

    outcome: KeyOutcome
    key: str
    place: str
    value: Any
    job: str | None = None
    why: str = ""


@dataclass(frozen=True)
class ResolvedAuto:
    """An `"auto"`: the value that took its place, and where that is from."""

    key: str
    place: str
    value: Any
    origin: str


@dataclass
class Findings:
    """What the reading of configs found; grown by the readers, frozen by nobody.

    `mended` is the text that `--lenient` made of a file, by its name.
    """

    rows: list[ReportRow] = field(default_factory=list)
    autos: list[ResolvedAuto] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    mended: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)

    def take(self, others: Findings) -> None:
        """Add what was found by `others`."""
        for name in ("rows", "autos", "accepted", "wrong", "unsupported"):
            getattr(self, name).extend(getattr(others, name))
        self.mended |= others.mended

    def to_json(self) -> dict[str, Any]:
        """Rows and `"auto"` values as JSON."""
        return {
            "keys": [{**asdict(row), "outcome": row.outcome.value} for row in self.rows],
            "auto": [asdict(auto) for auto in self.autos],
            "accepted": self.accepted,
            "mended": self.mended,
        }


def note_mends(findings: Findings, document: Document) -> None:
    """Take over what `--lenient` mended in `document`."""
    findings.accepted += document.accepted
    if document.mended is not None:
        findings.mended[document.source] = document.mended


def render(findings: Findings) -> Iterator[str]:
    """Lines of the report; each begins with `#`, so that they are comments in TOML too."""
    if findings.accepted:
        yield "# repaired as by --lenient"
        yield from (f"#   {_printable(note)}" for note in _by_kind(findings.accepted))
    for source, text in findings.mended.items():
        yield f"# {_printable(source)}, with these repairs:"
        lines = text.expandtabs().strip("\n").split("\n")
        yield from (f"#   {_printable(line)}".rstrip() for line in lines)
    if findings.autos:
        yield '# "auto" became'
        yield from _aligned(
            [(a.place, a.key, _value(a.value), f"from {a.origin}") for a in findings.autos]
        )
    for outcome, head in HEADS.items():
        rows = [row for row in findings.rows if row.outcome is outcome]
        if rows:
            yield f"# {head}"
            yield from _aligned([_cells(row) for row in rows])


def _by_kind(notes: Sequence[str]) -> Iterator[str]:
    """Each kind of mend in a file once, with its lines."""
    lines: dict[tuple[str, str], list[int]] = {}
    for note in notes:
        found = _ON_LINE.fullmatch(note)
        if found is None:
            yield note
        else:
            lines.setdefault((found[1], found[3]), []).append(int(found[2]))
    for (source, what), numbers in lines.items():
        yield _on_lines(source, what, numbers)


def _on_lines(source: str, what: str, lines: list[int]) -> str:
    if len(lines) == 1:
        return f"{source}:{lines[0]}: {what}"
    spans: list[list[int]] = []
    for line in lines:
        if spans and line == spans[-1][1] + 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    shown = [str(begin) if begin == end else f"{begin} to {end}" for begin, end in spans]
    return f"{source}, lines {', '.join(shown)}: {what}"


def _cells(row: ReportRow) -> tuple[str, ...]:
    arrow = f"-> {row.job}" if row.job else ""
    said = "; ".join(part for part in (arrow, row.why) if part)
    return row.place, row.key, _value(row.value), said


def _value(value: Any) -> str:
    return show(value) if value is not None else "-"


def _printable(text: str) -> str:
    """On one line, and without what a TOML comment may not hold."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    printable = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*printable, strict=True)]
    for row in printable:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"#   {'  '.join(cells)}".rstrip()
