"""Chats with the same roles: the template's text around their texts, found once.

The turns are rendered with probes as texts. If another chat with these roles is exactly the same
with its texts instead of the probes, its answers are at the positions of the probes' answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerotools.jobs.datafiles.conversations import Turn
from zerotoolsd.trainer.data.encoding.answers import Span


@dataclass(frozen=True)
class RenderedChat:
    """The text of a chat, and the positions of its learned answers, in order; the last one, which
    may be in several parts, begins at `split`. `is_changed` means that a text differs from the
    data. `left_out` are fields of turns that the text does not have."""

    text: str
    spans: tuple[Span, ...]
    split: int
    is_changed: bool = False
    left_out: tuple[str, ...] = ()


Point = tuple[int, int]
"""A position in a chat: the number of texts before it, and its offset with all texts empty."""


@dataclass(frozen=True)
class ChatOutline:
    """The text around the texts of turns with these `roles`, and the begin and end of answers. The
    last `tail` letters are added to the template's output."""

    roles: tuple[str, ...]
    around: tuple[str, ...]
    points: tuple[Point, ...]
    tail: int

    def filled(self, turns: Sequence[Turn], text: str) -> RenderedChat | None:
        """Return the chat with the rendered `text`; None if that does not match the outline."""
        texts = [turn["content"] for turn in turns[: len(self.roles)]]
        text += self.around[-1][len(self.around[-1]) - self.tail :]
        if self._joined(texts) != text:
            texts = [each.strip() for each in texts]
            if self._joined(texts) != text:
                return None
        before = [0]
        for each in texts:
            before.append(before[-1] + len(each))
        *bounds, split = (before[count] + bare for count, bare in self.points)
        return RenderedChat(text, tuple(zip(bounds[::2], bounds[1::2], strict=True)), split)

    def _joined(self, texts: Sequence[str]) -> str:
        parts = [self.around[0]]
        for text, around in zip(texts, self.around[1:], strict=True):
            parts += (text, around)
        return "".join(parts)


def probe(number: int) -> str:
    """Return a text that no template changes, to replace a turn's text."""
    return f"\u2042{number}\u2042"


def outline_of(chat: RenderedChat, roles: tuple[str, ...], tail: int) -> ChatOutline | None:
    """Return the outline of a chat with probes as texts; None if they are not in order."""
    around: list[str] = []
    rest = chat.text
    for number in range(len(roles)):
        before, found, rest = rest.partition(probe(number))
        if not found:
            return None
        around.append(before)
    around.append(rest)
    if chat.is_changed or chat.left_out or "\u2042" in "".join(around) or tail > len(rest):
        return None
    points = [_point(chat.text, place) for span in chat.spans for place in span]
    points.append(_point(chat.text, chat.split))
    found_points = [point for point in points if point is not None]
    if len(found_points) < len(points):
        return None
    return ChatOutline(roles, tuple(around), tuple(found_points), tail)


def _point(text: str, place: int) -> Point | None:
    """Return the point; None in the middle of a probe."""
    marks = text[:place].count("\u2042")
    if marks % 2:
        return None
    count = marks // 2
    return count, place - sum(len(probe(number)) for number in range(count))
