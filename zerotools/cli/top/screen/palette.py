"""The style of each meaning: the terminal's own colours, or darker ones where its background is
known to be light, on which its green and yellow may be hard to read."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style

from zerotools.cli.top.drawing.styled_lines import CURSOR

LIGHT, DARK = "light", "dark"
_SHAPES = {
    "strong": "bold",
    "key": "bold",
    "quiet": "dim",
    "title": "dim",
    "rule": "dim",
    "free": "dim",
    "track": "dim",
    "bad": "bold",
}
"""What is there without colours, too."""
_OWN = {
    "key": "bold cyan",
    "job": "green",
    "stranger": "yellow",
    "residue": "red",
    "meter": "cyan",
    "strip": "cyan",
    "curve": "cyan",
    "busy": "cyan",
    "evals": "magenta",
    "late": "yellow",
    "warning": "yellow",
    "good": "green",
    "bad": "bold red",
}
_ON_LIGHT = {
    "key": "bold color(24)",
    "job": "color(28)",
    "stranger": "color(130)",
    "residue": "color(124)",
    "meter": "color(24)",
    "strip": "color(24)",
    "curve": "color(24)",
    "busy": "color(24)",
    "evals": "color(90)",
    "late": "color(130)",
    "warning": "color(130)",
    "good": "color(28)",
    "bad": "bold color(124)",
}
"""Of the 256 colours of xterm: at least 4.5 to 1 on white (WCAG 2, success criterion 1.4.3)."""

_BEHIND = {DARK: "bold on color(237)", LIGHT: "bold on color(254)"}
"""What is under the cursor; elsewhere it is reversed."""

Styles = Mapping[str, Style]


def styles_of(background: str | None, *, colours: bool) -> Styles:
    """By meaning. `background` is `light`, `dark`, or None where that is not known."""
    chosen = _ON_LIGHT if background == LIGHT else _OWN
    words = {"": "", **dict.fromkeys(_OWN, ""), **_SHAPES, **(chosen if colours else {})}
    styles = {meaning: Style.parse(text) for meaning, text in words.items()}
    behind = _BEHIND.get(background or "") if colours else None
    for meaning, style in list(styles.items()):
        # Colours behind which others are readable are known only where the background is.
        on = style + Style.parse(behind) if behind else Style.parse("reverse")
        styles[f"{CURSOR}{meaning}"] = on
    return styles
