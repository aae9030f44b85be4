"""What messages point to is installed: pages of `zerotools help`, and no file of the repository."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from zerotools.cli.command_table import COMMANDS
from zerotools.cli.commands.help import all_topics

ROOT = Path(__file__).resolve().parents[2]
OF_THE_REPOSITORY = re.compile(
    r"(?:docs|systemd|scripts|benchmarks|tests)/\S+\.(?:md|conf|py|service|socket)|\b[\w-]+\.md\b"
    r"|see the README"
)
LINK = re.compile(r"\]\(\.\./[^)]*\)")
"""In the words of keys, which are the pages of the reference."""
HELP = re.compile(r"zerotools help ([a-z0-9][a-z0-9-]*)")


MAY_NAME = re.compile(r"\.md\b|README|zerotools help|(?:docs|systemd|scripts|benchmarks|tests)/")
"""Files without any of this name no page: they are not parsed, which takes seconds for all."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module that are no docstrings, with their lines."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            yield node.lineno, "".join(map(str, parts))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            yield node.lineno, node.value


@cache
def all_texts() -> list[tuple[str, str]]:
    """The strings of all that is shipped, with module and line."""
    modules = [*ROOT.glob("zerotools/**/*.py"), *ROOT.glob("daemon/zerotoolsd/**/*.py")]
    return [
        (f"{path.relative_to(ROOT)}:{line}", text)
        for path in modules
        if MAY_NAME.search(path.read_text("utf-8"))
        for line, text in texts(path)
    ]


def test_no_message_names_a_file_that_no_installation_has() -> None:
    found = [
        f"{where}: {text[:80]}"
        for where, text in all_texts()
        if OF_THE_REPOSITORY.search(LINK.sub("", text))
    ]
    assert found == []


def test_every_page_that_a_message_names_exists() -> None:
    topics = {*all_topics(), *COMMANDS, "lists"}  # "zerotools help lists all topics"
    named = {topic: where for where, text in all_texts() for topic in HELP.findall(text)}
    assert {topic: where for topic, where in named.items() if topic not in topics} == {}
    assert "install-as-a-service" in named
