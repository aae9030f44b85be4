"""Docstrings, messages and docs keep to plain English: habits that slow readers down are counted.

A low count does not prove that a text reads well, but a rising one shows that it reads worse. When
a count falls, lower its ceiling.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("zerotools", "daemon", "harness")
SHIPPED = ("zerotools", "daemon")

HABITS = (
    r"\b(?:of|for|by|with|from|in|than|and|is|are) what\b",  # "the size of what is read"
    r"\bwhose\b|\bwhom\b|\b(?:of|from|by|in) which\b",
    r"\bbeside\b|\bwhoever\b|\bnobody\b|\bsomebody\b",
    r"\b(?:go|goes|went|gone|going) on\b|\bgives? way\b|\bmakes? room\b|\b(?:takes?|taken) up\b",
    r"\btold\b|\b(?:is|are) (?-i:none)\b|\bof no\b|\bcame to nothing\b",
    r"\bwhere (?:there|it|they|none|nobody|no) \b",  # for "if" or "when"
    r", as (?:it|they|that|this|the|those) \b",  # for "because"
)
HABIT = re.compile("|".join(HABITS), re.IGNORECASE)
HABITS_OF_MESSAGES = (
    *HABITS,
    r"\b(?:says|said|asked)\b",  # a file has or records a value
    r"\b(?:is|are) no\b",  # "is not a"
    r"\b(?:job|rank|process|user)s? that (?:runs?|waits?|is|are|was|were|has|have)\b",
    r"\bleft over\b|\blooked? at\b|\bas it (?:is|was)\b|\bof (?:its|their) own\b",
)
HABIT_OF_MESSAGES = re.compile("|".join(HABITS_OF_MESSAGES), re.IGNORECASE)
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
NOUN_CLAUSE = re.compile(
    r"(?:What|Whether|As|Whose|Whom|Those|That|Which|Where|Somebody|Nobody|None)\b"
)


@cache
def definitions() -> tuple[tuple[Path, bool, str], ...]:
    """Every module, class and function with a docstring, and if it is a function. No tree is kept,
    and no expression is looked into: there are a million of them."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            left: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
            while left:
                node = left.pop()
                if isinstance(node, FUNCTION | ast.ClassDef | ast.Module) and (
                    text := ast.get_docstring(node)
                ):
                    found.append((path, isinstance(node, FUNCTION), text))
                for name in ("body", "orelse", "finalbody", "handlers", "cases"):
                    inner = getattr(node, name, ())
                    left += inner if isinstance(inner, list) else ()
    return tuple(found)


@cache
def docstrings() -> tuple[str, ...]:
    return tuple(text for _, _, text in definitions())


@cache
def messages() -> tuple[str, ...]:
    """The literals of the shipped packages with at least four words, without docstrings and without
    programs for other interpreters."""
    found: list[str] = []
    for package in SHIPPED:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            found += [
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value.count(" ") >= 3
                and id(node) not in alone
                and not node.value.lstrip().startswith("import ")
            ]
    return tuple(found)


@cache
def pages() -> tuple[str, ...]:
    """The Markdown pages in English, without their code blocks."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    english = [p for p in paths if "zh" not in p.parts and not p.name.endswith("zh-CN.md")]
    return tuple(re.sub(r"```.*?```", "", p.read_text("utf-8"), flags=re.DOTALL) for p in english)


CODE = re.compile(r"`[^`]*`")
"""Names in a text: no words of it."""


def per_ten_thousand(texts: tuple[str, ...], habit: re.Pattern[str] = HABIT) -> float:
    plain = [CODE.sub("``", text) for text in texts]
    words = sum(len(text.split()) for text in plain)
    return 10_000 * sum(len(habit.findall(text)) for text in plain) / words


@pytest.mark.parametrize(
    ("text", "habits"),
    [
        ("Return the size of what is read.", 1),
        ("A rank whose state nobody reads goes on.", 3),
        ("Return the names of the tensors that the file holds.", 0),
    ],
)
def test_habits_are_counted(text: str, habits: int) -> None:
    assert len(HABIT.findall(text)) == habits


@pytest.mark.parametrize(
    ("texts", "ceiling"),
    [
        pytest.param(docstrings, 8, id="docstrings"),
        pytest.param(pages, 9, id="docs"),
    ],
)
def test_habits_do_not_return(texts: Callable[[], tuple[str, ...]], ceiling: float) -> None:
    assert per_ten_thousand(texts()) <= ceiling


@pytest.mark.parametrize(
    ("text", "habits"),
    [
        ("the manifest says 3, as it was saved; the rest is left over", 3),
        ("{path} is no directory, and a job that waits is asked to stop", 3),
        ("{path} has 5 bytes, but the manifest has 7; copy or download it again", 0),
    ],
)
def test_habits_of_messages_are_counted(text: str, habits: int) -> None:
    assert len(HABIT_OF_MESSAGES.findall(text)) == habits


def test_habits_do_not_return_to_messages() -> None:
    assert per_ten_thousand(messages(), HABIT_OF_MESSAGES) <= 6


def test_docstrings_of_functions_begin_with_a_verb_or_a_subject() -> None:
    functions = [(path, text) for path, is_function, text in definitions() if is_function]
    clauses = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path, text in functions
        if NOUN_CLAUSE.match(text)
    ]
    assert len(clauses) <= 0.01 * len(functions), "\n".join(clauses)
