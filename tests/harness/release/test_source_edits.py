"""The texts that name a version, before and after a release."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from harness.release import source_edits
from zerotools.core.errors import BadRequest

DAY = date(2026, 12, 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "zerotools").mkdir()
    (tmp_path / source_edits.VERSION_FILE).write_text('A = 1\nBASE = "0.3.0.dev0"\n')
    changes = (
        "# Changelog\n\n## [0.3.0] - unreleased\n\n### Queue\n- A.\n\n## [0.2.0] - 2026-01-01\n"
    )
    (tmp_path / source_edits.CHANGELOG).write_text(changes)
    (tmp_path / source_edits.CITATION).write_text("cff-version: 1.2.0\nversion: 0.2.0\n")
    return tmp_path


def test_a_release_is_dated_and_the_next_one_begun(root: Path) -> None:
    source_edits.set_base(root, "0.3.0")
    source_edits.date_changelog(root, "0.3.0", DAY)
    source_edits.date_citation(root, "0.3.0", DAY)
    assert source_edits.base_in(root) == "0.3.0"
    assert "## [0.3.0] - 2026-12-01\n" in (root / source_edits.CHANGELOG).read_text()
    citation = (root / source_edits.CITATION).read_text()
    assert citation == "cff-version: 1.2.0\nversion: 0.3.0\ndate-released: 2026-12-01\n"
    source_edits.open_changelog(root, source_edits.next_of("0.3.0"))
    changes = (root / source_edits.CHANGELOG).read_text()
    assert "# Changelog\n\n## [0.4.0] - unreleased\n\n## [0.3.0] - 2026-12-01\n" in changes


def test_a_changelog_that_does_not_fit_is_refused(root: Path) -> None:
    with pytest.raises(BadRequest, match=r"first section .* is 0\.3\.0, but must be 0\.4\.0"):
        source_edits.date_changelog(root, "0.4.0", DAY)
    source_edits.date_changelog(root, "0.3.0", DAY)
    with pytest.raises(BadRequest, match=r"0\.3\.0 was released on 2026-12-01"):
        source_edits.date_changelog(root, "0.3.0", DAY)
    source_edits.open_changelog(root, "0.4.0")
    with pytest.raises(BadRequest, match=r"no entry for 0\.4\.0"):
        source_edits.date_changelog(root, "0.4.0", DAY)


@pytest.mark.parametrize("version", ["1.0", "v1.0.0", "1.0.0.dev0", "1.0.0\n"])
def test_a_version_has_three_numbers(version: str) -> None:
    with pytest.raises(BadRequest, match="write X"):
        source_edits.check_version(version)
