"""What an index of packages and others read of the project: links, addresses, the citation."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from markdown_it import MarkdownIt

from zerotools.version import BASE, version_order

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ADDRESS = PROJECT["urls"]["Repository"]
TARGET = re.compile(r"<(?:img|a) [^>]*(?:src|href)=\"([^\"]+)\"")


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def targets(text: str) -> list[str]:
    """What a page of Markdown links to, once it is rendered."""
    return TARGET.findall(MarkdownIt("commonmark").enable("table").render(text))


def test_no_link_of_the_readme_is_relative_on_an_index(build: ModuleType) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    metadata = {"urls": PROJECT["urls"]}
    build.CustomMetadataHook(str(ROOT), {}).update(metadata)
    shown = targets(metadata["readme"]["text"])
    assert len(shown) == len(targets(text)) > 50
    assert [link for link in shown if not link.startswith(("https://", "#"))] == []
    page = re.compile(rf"{re.escape(ADDRESS)}/blob/(?:main|v[0-9.]+)/docs/how-to/install\.md")
    assert any(page.fullmatch(link) for link in shown)


def test_links_of_a_release_lead_to_its_tag(build: ModuleType) -> None:
    page = "[a](docs/a.md#b) [c](#c) [d](https://example.org) ![e](docs/images/e.png)"
    assert build.absolute_links(page, "https://x", "v1.0.0") == (
        "[a](https://x/blob/v1.0.0/docs/a.md#b) [c](#c) [d](https://example.org) "
        "![e](https://x/blob/v1.0.0/docs/images/e.png)"
    )


def test_the_address_of_the_repository_is_the_same_everywhere() -> None:
    assert all(url.startswith(ADDRESS) for url in PROJECT["urls"].values())
    for name in ("SECURITY.md", "CITATION.cff"):
        text = (ROOT / name).read_text("utf-8")
        assert re.findall(r"https://github\.com/zerotools/[\w-]+", text) == [ADDRESS]


def test_the_citation_is_valid_and_names_no_later_release() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert version_order(str(citation.get("version", "0"))) <= version_order(BASE)
    assert citation["license"] == PROJECT["license"]
    assert " ".join(citation["abstract"].split()) == PROJECT["description"]
    assert sorted(citation["keywords"]) == sorted(PROJECT["keywords"])
    assert citation["type"] == "software"
    known = {"family-names", "given-names", "name", "orcid", "affiliation", "email", "website"}
    assert all(author and set(author) <= known for author in citation["authors"])


def test_a_build_asks_git_of_its_own_source_alone(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    wanted = build.built_version()
    monkeypatch.setenv("GIT_DIR", str(tmp_path))  # as in a hook of another repository
    assert build.built_version() == wanted
    assert build._git("rev-parse", "--show-toplevel") == str(ROOT)


def test_a_checkout_of_another_user_may_be_changed_since_its_commit(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files to another user")
    place = tmp_path / "checkout"
    (place / "zerotools").mkdir(parents=True)
    shutil.copy2(ROOT / build.VERSION_FILE, place / build.VERSION_FILE)
    shutil.copy2(ROOT / ".gitignore", place / ".gitignore")  # of __pycache__
    for words in (["init"], ["add", "."], ["commit", "-m", "it"]):
        git = ["git", "-C", place, "-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run([*git, *words], check=True, capture_output=True)
    for path in (place, *place.rglob("*")):
        os.chown(path, 65534, 65534)
    monkeypatch.setattr(build, "ROOT", place)
    monkeypatch.setenv("HOME", str(tmp_path))  # no `safe.directory` of whoever runs this
    assert build.built_version().startswith(f"{BASE}+g")
    assert not build.built_version().endswith(".dirty")
    (place / "new.py").touch()
    assert build.built_version().endswith(".dirty")
