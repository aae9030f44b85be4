"""Find configs and launch lines in a saved web page, which may be text, Markdown or HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from html.parser import HTMLParser

from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs.text.mend_pasted_text import ODD


class BlockKind(StrEnum):
    """The kind of a config or launch line that was found in a page."""

    LAUNCH = "launch line"
    DEEPSPEED = "DeepSpeed config"
    ACCELERATE = "accelerate config"


@dataclass(frozen=True)
class PageBlock:
    """A config or launch line that was found in a page. It begins at line `line` of the page;
    the first line is 1.
    """

    kind: BlockKind
    line: int
    text: str

    @property
    def padded_text(self) -> str:
        """The text of the block after `line - 1` empty lines. So each line of this text has the
        same line number as in the page.
        """
        return "\n" * (self.line - 1) + self.text


_BLANK = rf"[ \t{ODD}]"
_LAUNCHER = re.compile(
    rf"{_BLANK}*(?:[$%>]+{_BLANK}+)?(?:(?:nohup|env|time|sudo|exec|[A-Za-z_]\w*=\S*){_BLANK}+)*"
    rf"(?:deepspeed|torchrun|accelerate{_BLANK}+launch|(?:llamafactory-cli|axolotl){_BLANK}+train|"
    rf"(?:swift|trl){_BLANK}+(?:sft|dpo)|python[\d.]*{_BLANK}+-m{_BLANK}+"
    rf"(?:torch\.distributed\.\w+|deepspeed\S*|accelerate\S*)){_BLANK}+\S"
)
_SETS = re.compile(
    rf"{_BLANK}*(?:export{_BLANK}+)?[A-Za-z_]\w*=|{_BLANK}*(?:#|cd{_BLANK}|conda{_BLANK})"
)
_CONTINUES = re.compile(rf"\\{_BLANK}*(?:#.*)?$")
_OPTION = re.compile(rf"{_BLANK}*(?:--|[\u2012-\u2015]{{1,2}})[A-Za-z]")
_OPENS = re.compile(rf"{_BLANK}*(?:[\w.]+{_BLANK}*=?{_BLANK}*)?[{{\uff5b]")
_STRING = re.compile("\"[^\"\\n]*\"|'[^'\\n]*'|\u201c[^\u201d\\n]*\u201d")
_REMARK = re.compile(r"(?:#|//).*|/\*.*?\*/")
_OF_DEEPSPEED = re.compile(
    r"\b(?:zero_optimization|train_batch_size|train_micro_batch_size_per_gpu|fp16|bf16"
    r"|gradient_accumulation_steps|gradient_clipping|optimizer|scheduler)\b"
)
_KEY = re.compile(rf"{_BLANK}*(?:-{_BLANK}|([A-Za-z_]\w*){_BLANK}*[:\uff1a](?!//))")
_OF_ACCELERATE = frozenset(
    (
        "compute_environment",
        "deepspeed_config",
        "distributed_type",
        "fsdp_config",
        "machine_rank",
        "main_training_function",
        "mixed_precision",
        "num_machines",
        "num_processes",
    )
)
_FEWEST_KEYS = 3
"""The smallest number of accelerate's keys in a text that is taken as accelerate's config."""
_LONGEST_JSON = 400
"""The largest number of lines of a JSON object.

The limit is needed because a page may omit the last brace.
"""
_WIDEST = 76
"""The largest width, in columns, of a line in the list of blocks."""
_BLOCK_TAGS = frozenset(
    ("br", "code", "div", "h1", "h2", "h3", "h4", "h5", "h6", "li", "p", "pre", "td", "tr")
)
_UNSEEN_TAGS = frozenset(("script", "style", "head", "noscript"))


def blocks_of(text: str) -> list[PageBlock]:
    """Return the configs and launch lines in the text of a page, in order."""
    lines = page_text(text).split("\n")
    found: list[PageBlock] = []
    at = 0
    searched = 0  # before this line, no config begins: too few keys
    while at < len(lines):
        block = _json(lines, at) or _launch(lines, at)
        if block is None and at >= searched:
            block, searched = _yaml(lines, at)
        if block is None:
            at += 1
            continue
        found.append(_with_settings(lines, block, found))
        at = block.line - 1 + block.text.count("\n") + 1
    return found


def page_text(text: str) -> str:
    """Convert the text of a page, which may be HTML, to the text that a browser shows."""
    head = text.lstrip()[:200].lower()
    if not head.startswith(("<!doctype", "<html", "<?xml")) and "<body" not in head:
        return text
    parser = _Page()
    parser.feed(text)
    parser.close()
    return "".join(parser.parts)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._unseen = 0
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._unseen += tag in _UNSEEN_TAGS
        self._verbatim += tag == "pre"
        if tag == "br" or (tag in _BLOCK_TAGS - {"code"}):
            self._new_line()

    def handle_endtag(self, tag: str) -> None:
        self._unseen -= tag in _UNSEEN_TAGS and self._unseen > 0
        self._verbatim -= tag == "pre" and self._verbatim > 0
        if tag in _BLOCK_TAGS - {"code", "br"}:
            self._new_line()

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.parts.append(data if self._verbatim else re.sub(r"[ \t\n\r]+", " ", data))

    def _new_line(self) -> None:
        if self.parts and not self.parts[-1].endswith("\n"):
            self.parts.append("\n")


def _block(kind: BlockKind, lines: list[str], begin: int, end: int) -> PageBlock:
    return PageBlock(kind, begin + 1, "\n".join(lines[begin:end]))


def _json(lines: list[str], at: int) -> PageBlock | None:
    if _OPENS.match(lines[at]) is None:
        return None
    depth = 0
    for end in range(at, min(len(lines), at + _LONGEST_JSON)):
        bare = _REMARK.sub("", _STRING.sub("", lines[end]))
        depth += len(re.findall("[{\uff5b]", bare)) - len(re.findall("[}\uff5d]", bare))
        if depth <= 0:
            block = _block(BlockKind.DEEPSPEED, lines, at, end + 1)
            return block if _OF_DEEPSPEED.search(block.text) else None
    return None


def _launch(lines: list[str], at: int) -> PageBlock | None:
    if _LAUNCHER.match(lines[at]) is None:
        return None
    end = at + 1
    while end < len(lines):
        following = next((i for i in range(end, len(lines)) if lines[i].strip()), None)
        goes_on = following is not None and _OPTION.match(lines[following]) is not None
        if goes_on and following is not None:
            end = following + 1
        elif _CONTINUES.search(lines[end - 1]):
            end += 1
        else:
            break
    return _block(BlockKind.LAUNCH, lines, at, end)


def _yaml(lines: list[str], at: int) -> tuple[PageBlock | None, int]:
    """Read the lines `KEY: VALUE` that begin at line `at`. Return the config, and the number of the
    line after these lines. The config is None if the keys are not accelerate's.
    """
    end = at
    keys: set[str] = set()
    while end < len(lines) and (found := _KEY.match(lines[end])) is not None:
        keys.add(found[1] or "")
        end += 1
    if len(keys & _OF_ACCELERATE) < _FEWEST_KEYS:
        return None, end
    return _block(BlockKind.ACCELERATE, lines, at, end), end


def _with_settings(lines: list[str], block: PageBlock, before: list[PageBlock]) -> PageBlock:
    """Return the launch line `block`, extended by the lines above it that set variables. Return any
    other block unchanged."""
    if block.kind is not BlockKind.LAUNCH:
        return block
    least = before[-1].line - 1 + before[-1].text.count("\n") + 1 if before else 0
    begin = first = block.line - 1
    while begin > least and (not lines[begin - 1].strip() or _SETS.match(lines[begin - 1])):
        begin -= 1
        first = begin if lines[begin].strip() else first
    return _block(BlockKind.LAUNCH, lines, first, block.line + block.text.count("\n"))


def block_lines(blocks: list[PageBlock]) -> Iterator[str]:
    """Yield one line of text for each block: its number, the line at which it begins, its kind,
    its length, and its first words.
    """
    for number, block in enumerate(blocks, 1):
        begin = next(line.strip() for line in block.text.split("\n") if line.strip())
        size = count_text(block.text.count("\n") + 1, "line")
        head = f"{number:>3}  line {block.line}: {block.kind.value}, {size}: "
        room = _WIDEST - len(head)
        yield head + (begin if len(begin) <= room else f"{begin[: room - 3]}...")
