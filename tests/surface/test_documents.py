"""The documents say what the code does: references, commands, changelog, links."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

from zerotools.cli.command_table import COMMANDS, OLD_NAMES
from zerotools.jobs.jobfile.parse import parse_job

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LONGEST_ARCHITECTURE = 200


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[str]:
    """The fenced code blocks of one language."""
    return re.findall(
        rf"^```{language}(?: [^\n]*)?\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL
    )


def test_the_reference_pages_follow_from_the_code() -> None:
    command = [sys.executable, str(ROOT / "scripts/make_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, f"{done.stdout}run python scripts/make_reference.py"


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_to_files_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_commands_in_documents_exist(path: Path) -> None:
    shown = [block for language in ("", "sh", "console") for block in blocks(path, language)]
    used = re.findall(r"(?:^|\n)(?:\$ )?zerotools ([a-z]+)", "\n".join(shown))
    said = re.findall(r"`zerotools ([a-z]+)", path.read_text())
    former = set(OLD_NAMES) if path.name in ("hold-a-job.md", "CHANGELOG.md") else set()
    assert {*used, *said} <= set(COMMANDS) | former


def test_names_in_guides_for_contributors_exist() -> None:
    pages = "".join(path.read_text() for path in ROOT.glob("docs/contributing/*.md"))
    names = set(re.findall(r"`((?:core|formats|io|maps|ops|runs)(?:\.\w+)+)", pages))
    assert len(names) > 10
    for name in sorted(names):
        resolve_name(f"zerotools.{name}")


def test_commands_in_messages_exist() -> None:
    """`zerotools` with a verb that says what the program does is no command."""
    does = re.compile(r"\w+s|to|of|where|job|already|only|training|can|cannot|did|wrote|began|have")
    lost = [
        f"{path.relative_to(ROOT)}: zerotools {word}"
        for folder in (ROOT / "zerotools", ROOT / "daemon/zerotoolsd")
        for path in folder.rglob("*.py")
        for text in texts_of(path)
        for word in re.findall(r"\bzerotools ([a-z]+)\b", text)
        if word not in COMMANDS and not does.fullmatch(word)
    ]
    assert lost == []


def texts_of(path: Path) -> Iterator[str]:
    """The strings of a module that are no docstrings."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    documents = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and id(node) not in documents:
            yield from [node.value] if isinstance(node.value, str) else []


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_job_files_in_documents_are_valid(path: Path) -> None:
    for block in blocks(path, "toml"):
        if "[model" in block:
            if 'engine = "deepspeed"' in block and "[deepspeed]" not in block:
                block += "[deepspeed.config]\n"  # which `submit --deepspeed` puts in
            parse_job(block, source=named(path), base_dir=ROOT)


def test_the_index_of_the_documents_has_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = [path.relative_to(ROOT / "docs") for path in ROOT.glob("docs/*/*.md")]
    english = [page for page in pages if page.parent.name != "zh"]
    assert [str(page) for page in english if f"]({page})" not in index] == []


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [name for name in COMMANDS if f"zerotools {name}" not in readme] == []


def test_the_architecture_is_short() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    assert len(lines) <= LONGEST_ARCHITECTURE


def test_the_pins_satisfy_the_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    extras = [name for group in project["optional-dependencies"].values() for name in group]
    wanted = [re.split(r"[<>=~\[]", each)[0] for each in [*project["dependencies"], *extras]]
    names = {name.lower().replace("_", "-") for name in wanted} - {project["name"]}
    assert sorted(names - pins) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_interpreter_sessions_in_documents_run(path: Path) -> None:
    session = "\n".join(blocks(path, "pycon"))
    test = doctest.DocTestParser().get_doctest(session, {}, named(path), str(path), 0)
    assert doctest.DocTestRunner().run(test).failed == 0
