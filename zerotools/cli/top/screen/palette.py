"""The style of each meaning: the colours of the terminal, or darker ones on a light background,
because its green and yellow may be hard to read there."""

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
"""The styles that remain without colours."""
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
"""The background under the cursor; elsewhere it is reversed."""

Styles = Mapping[str, Style]


def styles_of(background: str | None, *, colours: bool) -> Styles:
    """Return styles by meaning. `background` is `light`, `dark`, or None if unknown."""
    chosen = _ON_LIGHT if background == LIGHT else _OWN
    words = {"": "", **dict.fromkeys(_OWN, ""), **_SHAPES, **(chosen if colours else {})}
    styles = {meaning: Style.parse(text) for meaning, text in words.items()}
    behind = _BEHIND.get(background or "") if colours else None
    for meaning, style in list(styles.items()):
        # Readable colours behind others are known only if the background is.
        on = style + Style.parse(behind) if behind else Style.parse("reverse")
        styles[f"{CURSOR}{meaning}"] = on
    return styles
