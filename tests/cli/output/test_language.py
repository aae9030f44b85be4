"""Hints in Chinese: which messages they are for, and that those are still the program's."""

from __future__ import annotations

import re
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest

from zerotools.cli.output.language import (
    CATALOGUE,
    REPORT,
    chinese_hint,
    columns_of,
    language,
    read_catalogue,
    translated,
)
from zerotools.cli.output.messages import print_error, wrapped
from zerotools.cli.output.report_failure import Failure

ROOT = Path(__file__).resolve().parents[3]
LEAST_PIECE = 12
"""Characters of a message that are looked for in the source; shorter pieces are anywhere."""


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "ZEROTOOLS_LANG": "en"}, "en"),
        ({"LANG": "C.UTF-8", "ZEROTOOLS_LANG": "zh"}, "zh"),
        ({"LANG": "zha_XX"}, "en"),
    ],
)
def test_the_language_is_chosen_or_that_of_the_locale(
    environment: dict[str, str], found: str
) -> None:
    assert language(environment) == found


def test_a_hint_is_chinese_and_the_error_and_the_json_are_english(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = "out exists; choose another output, or pass --overwrite"
    monkeypatch.setenv("ZEROTOOLS_LANG", "zh")
    stream = StringIO()
    print_error(message, stream)
    error, hint = stream.getvalue().splitlines()
    assert error == "error: out exists"
    assert hint.startswith("提示: 输出 out 已经存在")
    assert Failure(message, 2, "bad_request").to_json()["hint"].startswith("choose another")
    print_error("this is in no catalogue; pass --other", stream)
    assert stream.getvalue().endswith("hint: pass --other\n")
    monkeypatch.setenv("ZEROTOOLS_LANG", "en")
    print_error(message, stream)
    assert stream.getvalue().endswith("hint: choose another output, or pass --overwrite\n")


def test_a_stream_of_ascii_has_the_english_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROTOOLS_LANG", "zh")
    stream = TextIOWrapper(BytesIO(), encoding="ascii", errors="backslashreplace")
    print_error("out exists; choose another output, or pass --overwrite", stream)
    shown = stream.buffer.getvalue()  # type: ignore[attr-defined]
    assert shown.endswith(b"hint: choose another output, or pass --overwrite\n")


def test_texts_of_the_message_stand_in_the_hint() -> None:
    said = "a.yaml: reading YAML needs PyYAML, which is not installed; run pip install PyYAML"
    assert chinese_hint(said) == "缺少 PyYAML。请运行：pip install PyYAML"
    assert chinese_hint("something else") is None


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("x.toml: there is no such job file", "没有 x.toml"),
        ("x.txt: there is no such page", "没有 x.txt"),
        (
            "run.sh:5: from --lr on, a shell would misread this command: a prompt (line 5); "
            "repair it with --lenient",
            "命令从网页复制时变了样，从 --lr 起",
        ),
        (
            "p.txt: has 2 launch lines; choose the blocks to import together with --block N,N "
            "(the list above has their numbers)",
            "这个网页里有几份同类的内容",
        ),
        (
            "p.txt: has no launch line and no config of DeepSpeed or accelerate; x",
            "p.txt 里没有",
        ),
    ],
)
def test_who_imports_a_page_is_helped_in_chinese(said: str, hint: str) -> None:
    assert (chinese_hint(said) or "").startswith(hint)


def test_a_sentence_of_a_report_is_in_the_language_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = "data.jsonl was not found; copy the file there, or set data.examples"
    monkeypatch.setenv("ZEROTOOLS_LANG", "zh")
    assert translated(said) == "没有找到 data.jsonl；把文件放到那里，或者设置 data.examples"
    assert translated("in no catalogue") == "in no catalogue"
    assert translated("69 to 89") == "69 到 89"
    assert translated("what leads to this") == "what leads to this", "a number stands there"
    assert translated(said, TextIOWrapper(BytesIO(), encoding="ascii")) == said
    assert chinese_hint(said) is None, "a sentence of a report is no hint"
    monkeypatch.setenv("ZEROTOOLS_LANG", "en")
    assert translated(said) == said


def test_entries_are_read_by_their_context() -> None:
    text = 'msgid ""\nmsgstr "head"\n\nmsgid "a"\nmsgstr "1"\n\n'
    text += 'msgctxt "report"\nmsgid "b"\nmsgstr "2"\n\nmsgid "c"\nmsgstr ""\n"3"\n'
    assert list(read_catalogue(text)) == [("a", "1"), ("c", "3")]
    assert list(read_catalogue(text, "report")) == [("b", "2")]


@pytest.mark.parametrize("context", ["", REPORT])
def test_the_places_of_each_hint_are_those_of_its_message(context: str) -> None:
    entries = list(read_catalogue(CATALOGUE.read_text("utf-8"), context))
    assert len(entries) >= 30
    for msgid, msgstr in entries:
        assert set(re.findall(r"\{\w+\}", msgstr)) <= set(re.findall(r"\{\w+\}", msgid)), msgid
        assert re.search("[\u4e00-\u9fff]", msgstr), msgid


def test_the_messages_are_those_of_the_program() -> None:
    folders = (ROOT / "zerotools", ROOT / "daemon/zerotoolsd")
    joined = re.compile(r"""["']\s*\n\s*f?["']""")
    source = "\n".join(
        joined.sub("", path.read_text("utf-8"))
        for folder in folders
        for path in folder.rglob("*.py")
    )
    composed = {"": r"\{\w+\}", REPORT: r"\{\w+\}|[:;,] | (?=with |at )| other choice"}
    of_click = ("no such option ", "missing argument ", "missing option ", "invalid value for ")
    of_others = (*of_click, "CUDA out of memory")
    lost = [
        piece
        for context in ("", REPORT)
        for msgid, _ in read_catalogue(CATALOGUE.read_text("utf-8"), context)
        for piece in re.split(composed[context], msgid)
        if len(piece) >= LEAST_PIECE and piece not in source and piece not in of_others
    ]
    assert lost == []


def test_a_line_of_chinese_is_cut_at_the_width_of_the_terminal() -> None:
    hint = chinese_hint("nothing answers at /x; is zerotoolsd running?")
    assert hint is not None
    lines = wrapped("提示:", [hint], 80)
    assert len(lines) == 2
    assert columns_of("提示: " + lines[0]) <= 80 > columns_of(lines[1])
    assert "".join(line.strip() for line in lines).replace(" ", "") == hint.replace(" ", "")
    narrow = wrapped("提示:", [hint], 40)
    assert max(map(columns_of, narrow)) <= 40
    assert not [line for line in narrow if line.strip()[0] in "，。；："]
