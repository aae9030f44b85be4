"""Formats Markdown as plain text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from zerotools.cli.output import render

_FENCE = re.compile(r"\s*```")
_HEADING = re.compile(r"(#{1,6})\s+(.*)")
_ITEM = re.compile(r"(\s*)([-*]|\d+\.)\s+(.*)")
_RULE = re.compile(r"\s*\|?[\s:|-]+\|?\s*")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)")
_CELLS = re.compile(r"(?<!\\)\|")
_WIDE = "\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef"
_PIECE = re.compile(rf"[（《]*(?:[^{_WIDE}]+|[{_WIDE}])[，。；：、！？）》]*")
"""A part of a word that no line may end in: a Chinese character, or several others, with the
punctuation that belongs to it.
"""
_UNDERLINES = {1: "=", 2: "-"}
CODE_INDENT = "    "
GAP = "  "


def plain_text(markdown: str, columns: int = 80) -> Iterator[str]:
    """Yield the lines of a Markdown page, at most `columns` wide except for code.

    Headings, paragraphs, lists, tables, fenced code and links are supported. A link to another page
    becomes its text and `[topic]`.
    """
    was_blank = True
    for block in _blocks(_COMMENT.sub("", markdown).splitlines()):
        for line in _shown(block, columns):
            if line or not was_blank:
                yield line.rstrip()
            was_blank = not line


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield groups of lines that belong together: fenced code, a table, a heading, a list item or a
    paragraph.
    """
    block: list[str] = []
    is_code = False
    for line in lines:
        if is_code:
            block.append(line)
            if _FENCE.match(line):
                yield block
                block, is_code = [], False
            continue
        is_table = line.lstrip().startswith("|")
        begins = bool(_FENCE.match(line) or _HEADING.match(line) or _ITEM.fullmatch(line))
        continues = block and line.strip() and not begins and is_table == block[0].startswith("|")
        if not continues:
            if block:
                yield block
            block = []
        is_code = bool(_FENCE.match(line))
        block.append(line.lstrip() if is_table else line)
        if not is_code and (not line.strip() or _HEADING.match(line)):
            yield block
            block = []
    if block:
        yield block


def _shown(block: Sequence[str], columns: int) -> Iterator[str]:
    first = block[0]
    if _FENCE.match(first):
        yield from ("", *(f"{CODE_INDENT}{line}" for line in block[1:-1]), "")
    elif heading := _HEADING.match(first):
        title = _inline(heading[2])
        mark = _UNDERLINES.get(len(heading[1]))
        yield from ("", *_wrap(title, columns))
        if mark is not None:
            yield mark * min(render.width(title), columns)
        yield ""
    elif first.startswith("|"):
        yield from ("", *_table(block, columns), "")
    elif item := _ITEM.fullmatch(first):
        text = " ".join([item[3], *(line.strip() for line in block[1:])])
        mark = f"{item[1]}{item[2]} "
        yield from _wrap(_inline(text), columns, mark, " " * len(mark))
    else:
        indent = " " * (len(first) - len(first.lstrip()))
        yield from _wrap(_inline(" ".join(line.strip() for line in block)), columns, indent, indent)


def _table(block: Sequence[str], columns: int) -> Iterator[str]:
    """Yield the lines of a table.

    If the table is too wide, each row becomes a list: the first cell, and the other cells below it.
    If there are several other cells, each is preceded by the name of its column.
    """
    rows = [_cells(line) for line in block if not _RULE.fullmatch(line)]
    head, body = rows[0], rows[1:]
    widths = [max(render.width(cell) for cell in column) for column in zip(*rows, strict=False)]
    if sum(widths) + len(GAP) * (len(widths) - 1) <= columns:
        ruled = [head, ["-" * width for width in widths]] if any(head) else []
        for row in (*ruled, *body):
            padded = (
                cell + " " * (width - render.width(cell))
                for cell, width in zip(row, widths, strict=False)
            )
            yield GAP.join(padded)
        return
    for row in body:
        yield from _wrap(row[0], columns)
        for name, cell in zip(head[1:], row[1:], strict=False):
            named = f"{name}: {cell}" if len(head) > 2 and name else cell
            if cell:
                yield from _wrap(named, columns, CODE_INDENT, CODE_INDENT)


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [_inline(cell.strip().replace("\\|", "|")) for cell in _CELLS.split(inner)]


def _inline(text: str) -> str:
    text = _LINK.sub(_link, _IMAGE.sub("", text))
    return text.replace("**", "")


def _link(found: re.Match[str]) -> str:
    words, target = found[1], found[2]
    page = target.partition("#")[0]
    if ":" in target:
        return words if words in target else f"{words} ({target})"
    if page.endswith(".md"):
        return f"{words} [{page.rpartition('/')[2].removesuffix('.md')}]"
    return words


def _wrap(text: str, columns: int, first: str = "", later: str = "") -> list[str]:
    """Wrap the text at words, and next to Chinese characters, to `columns`. In contrast to
    textwrap, a wide character counts as two columns.
    """
    lines, line = [], first
    is_empty = True
    for word in text.split():
        gap = " "
        for piece in _PIECE.findall(word):
            if not is_empty and render.width(line) + len(gap) + render.width(piece) > columns:
                lines.append(line)
                line, is_empty = later, True
            line += piece if is_empty else f"{gap}{piece}"
            is_empty, gap = False, ""
    return [*lines, line]
