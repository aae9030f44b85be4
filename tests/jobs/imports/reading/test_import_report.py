"""The report of an import, as lines for people."""

from __future__ import annotations

from zerotools.jobs.imports.reading.import_report import Findings, report_lines


def test_mends_of_one_kind_are_one_line_with_their_places() -> None:
    odd, quotes = "an odd space", "typographic quotes"
    lines = [2, 3, 4, 7, 9]
    accepted = [*(f"ds.json:{line}: {odd}" for line in lines), f"ds.json:3: {quotes}"]
    assert list(report_lines(Findings(repairs=accepted))) == [
        "# repaired, as --lenient does",
        f"#   ds.json: {odd} (5 lines: 2 to 4, 7, 9); {quotes} (line 3)",
    ]
