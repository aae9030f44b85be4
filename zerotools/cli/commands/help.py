"""`zerotools help`: show a page of the documentation."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from zerotools.cli.options.click_options import json_option
from zerotools.cli.output import render
from zerotools.cli.output.language import can_show, language, translated
from zerotools.core.errors import BadRequest, Unsupported

WIDEST = 80


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in all_topics() if name.startswith(incomplete)]


@click.command("help")
@click.argument("topic", metavar="[TOPIC]", required=False, shell_complete=_complete)
@click.option("--list", "as_list", is_flag=True, help="List the names of the topics, one per line.")
@json_option
@click.pass_context
def command(context: click.Context, topic: str | None, as_list: bool, as_json: bool) -> None:
    """Show a page of the documentation; without TOPIC, list the pages.

    TOPIC is a page, such as install or troubleshooting, or a command. At a terminal, a page is
    shown by $PAGER. A word in brackets in the text of a page, such as [numa], is also a TOPIC.
    """
    if topic is None or as_list:
        topics = all_topics()
        if as_json:
            render.print_json({"topics": [_facts(each) for each in topics.values()]})
        else:
            render.print_lines(topics if as_list else _contents(topics))
        return
    if topic not in all_topics() and (page := _page_of_command(context, topic)) is not None:
        if as_json:
            page_of = {"topic": topic, "kind": "command", "title": f"zerotools {topic}"}
            render.print_json({"page": {**page_of, "text": page}})
        else:
            _show(page)
        return
    found = find_topic(topic)
    if as_json:
        render.print_json({"page": {**_facts(found), "text": found.markdown()}})
        return
    columns = min(render.terminal_columns() or WIDEST, WIDEST)
    _show("\n".join(plain_text(found.markdown(), columns)))


def _facts(topic: Topic) -> Mapping[str, str]:
    return {"topic": topic.name, "kind": topic.kind, "title": topic.title}


def _contents(topics: Mapping[str, Topic]) -> Iterator[str]:
    yield translated("Topics; read one with: zerotools help TOPIC")
    width = max(map(len, topics))
    for kind in KINDS:
        yield ""
        yield f"{translated(kind.capitalize())}:"
        for topic in topics.values():
            if topic.kind == kind:
                own = in_own_language(topic).title
                title = own if can_show(own, sys.stdout) else topic.title
                yield render.shorten(f"  {topic.name.ljust(width)}  {title}", WIDEST)


def _page_of_command(context: click.Context, name: str) -> str | None:
    """Return the help of a command; None if the command does not exist."""
    group = context.find_root()
    if not isinstance(group.command, click.Group):
        return None
    found = group.command.get_command(group, name)
    if found is None:
        return None
    return found.get_help(click.Context(found, info_name=name, parent=group))


def _show(text: str) -> None:
    if sys.stdout.isatty():
        click.echo_via_pager(text + "\n")
    else:
        render.print_lines(text.splitlines())


# The pages of `zerotools help`: lists them, and finds the page of a topic.
#
# The topic of a page is the name of its file. A wheel has the folders of `docs` as
# `zerotools/pages` (`hatch_build.py`).

_PACKAGE = Path(__file__).resolve().parents[2]
PLACES = (_PACKAGE / "pages", _PACKAGE.parent / "docs")
"""The directories in which the pages are, in a wheel and in a checkout."""
KINDS = ("tutorial", "how-to", "explanation", "reference")
"""The folders of the documentation, in the order of the list of topics."""
LEAST_WORD = 3


@dataclass(frozen=True)
class Topic:
    """A page: its name (`name`), its folder (`kind`), and its first heading (`title`)."""

    name: str
    kind: str
    title: str
    path: Path

    def markdown(self) -> str:
        """Return the text of the page."""
        return self.path.read_text(encoding="utf-8")


def all_topics() -> Mapping[str, Topic]:
    """Return all pages keyed by name, in the order of `KINDS`.

    Raises:
        Unsupported: this installation has no pages.
    """
    place = next((each for each in PLACES if each.is_dir()), None)
    if place is None:
        raise Unsupported(
            f"this installation has no manual pages: {PLACES[0]} does not exist; install the "
            "wheel again"
        )
    found = (
        Topic(path.stem, kind, _title(path), path)
        for kind in KINDS
        for path in sorted((place / kind).glob("*.md"))
    )
    return {topic.name: topic for topic in found}


def find_topic(name: str) -> Topic:
    """Return the page `name`. Case and an ending `.md` are ignored.

    Raises:
        BadRequest: the page does not exist.
    """
    topics = all_topics()
    wanted = name.lower().rpartition("/")[2].removesuffix(".md").replace("_", "-")
    if wanted in topics:
        return in_own_language(topics[wanted])
    near = nearest(wanted, topics)
    hint = f"did you mean {' or '.join(near)}?" if near else "zerotools help lists all topics"
    raise BadRequest(f"topic {name!r} does not exist; {hint}")


def in_own_language(topic: Topic) -> Topic:
    """Return the translation of the page into the language of the user if it exists, else the
    page.
    """
    path = topic.path.parent.parent / language() / topic.path.name
    return replace(topic, path=path, title=_title(path)) if path.is_file() else topic


def nearest(wanted: str, topics: Mapping[str, Topic]) -> list[str]:
    """Return at most three topics that the user may have meant by `wanted`, the likeliest first."""
    words = [word for word in wanted.split("-") if len(word) >= LEAST_WORD]
    holding = [
        name
        for name, topic in topics.items()
        if words and all(word in f"{name} {topic.title.lower()}" for word in words)
    ]
    similar = difflib.get_close_matches(wanted, topics, n=3)
    return list(dict.fromkeys([*similar, *holding]))[:3]


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return next((line[2:].strip() for line in file if line.startswith("# ")), path.stem)


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
