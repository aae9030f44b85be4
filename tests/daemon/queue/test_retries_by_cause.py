"""The table of causes is what docs/explanation/retries.md says."""

from __future__ import annotations

from pathlib import Path

from zerotoolsd.queue.retries_by_cause import (
    MACHINE,
    RULES,
    SPREAD,
    USUAL,
    CauseRule,
    rule_of,
    wait_factor,
)

PAGE = Path(__file__).resolve().parents[3] / "docs/explanation/retries.md"


def row_of(cause: str, rule: CauseRule) -> list[str]:
    """The cells of the page's table, but for the words."""
    retries = "any number" if not rule.counts else "`max_restarts`"
    if rule.retries is not None:
        retries = str(rule.retries) if rule.retries else "none"
    if not rule.retries and rule.retries is not None:
        return [f"`{cause}`", "none", "", "", "", ""]
    first = f"{rule.first:g} ×" if rule.first != 1 else "1 ×"
    factor = "`factor`" if rule.factor is None else f"{rule.factor:g}"
    yes_no = {True: "yes", False: "no"}
    return [f"`{cause}`", retries, first, factor, yes_no[rule.counts], yes_no[rule.fences]]


def test_the_page_has_the_table() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [[row[0], *row[2:]] for row in cells] == [row_of(*item) for item in RULES.items()]


def test_what_is_not_known_is_followed_by_what_follows_a_crash() -> None:
    assert rule_of(None) == rule_of("of a later version") == USUAL
    assert not rule_of(MACHINE).counts


def test_parts_lie_apart_and_are_always_the_same() -> None:
    parts = [wait_factor(job, 1) for job in range(200)]
    assert all(1 - SPREAD <= part <= 1 for part in parts)
    assert len(set(parts)) == 200
    assert max(parts) - min(parts) > 0.9 * SPREAD
    assert wait_factor(7, 1) == wait_factor(7, 1) != wait_factor(7, 2)
