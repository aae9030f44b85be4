from __future__ import annotations

from pathlib import Path

from zerotools.io.files.new_file import new_text_file


def test_what_a_link_leads_to_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "draft").symlink_to("precious")
    with new_text_file(tmp_path / "draft") as file:
        file.write("new")
    assert (tmp_path / "precious").read_text() == "kept"
    assert (tmp_path / "draft").read_text() == "new"
    assert not (tmp_path / "draft").is_symlink()
