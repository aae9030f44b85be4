"""Links beside a checkpoint are followed where its maker could not mean a file of somebody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadFile
from zerotools.io.output.files_without_tensors import carried_file, run_sidecars_in

SECRET = b"not to be shared"


def linked(link: Path, target: Path) -> Path:
    for path in (link, target):
        path.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(SECRET)
    link.symlink_to(target)
    return link


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("c/tokenizer.json", "home/.ssh/id_ed25519"),
        ("c/tokenizer.json", "home/notes"),
        ("c/config.json", "home/.docker/config.json"),
        ("c/tokenizer.json", "else/blobs/9c"),
    ],
)
def test_a_link_to_what_may_be_a_secret_is_refused(tmp_path: Path, link: str, target: str) -> None:
    path = linked(tmp_path / link, tmp_path / target)
    with pytest.raises(BadFile, match=f"{link} is a link to .*{target}, outside its directory"):
        carried_file(path)


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("models--a/snapshots/1/vocab.json", "models--a/blobs/9c"),
        ("c/vocab.json", ".cache/hub/models--a/blobs/9c"),
        ("c/vocab.json", "models/vocab.json"),
        ("c/vocab.json", "c/parts/3"),
    ],
)
def test_links_of_caches_and_models_are_followed(tmp_path: Path, link: str, target: str) -> None:
    assert carried_file(linked(tmp_path / link, tmp_path / target)).size == len(SECRET)


def test_a_directory_that_is_a_link_is_the_users_choice(tmp_path: Path) -> None:
    (tmp_path / ".real").mkdir()
    (tmp_path / ".real" / "vocab.json").write_bytes(SECRET)
    (tmp_path / "c").symlink_to(tmp_path / ".real")
    assert carried_file(tmp_path / "c" / "vocab.json").size == len(SECRET)


def test_links_out_of_a_run_are_left_behind_and_named(tmp_path: Path) -> None:
    """Any name can be chosen for these, also that of the secret."""
    linked(tmp_path / "run" / "id_ed25519", tmp_path / "keys" / "id_ed25519")
    (tmp_path / "run" / "notes.txt").write_text("ours")
    plans, notes = run_sidecars_in(tmp_path / "run", lambda _: False, same_ranks=True)
    assert list(plans) == ["notes.txt"]
    assert [note for note in notes if "are not copied: id_ed25519" in note]
