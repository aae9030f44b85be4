from __future__ import annotations

import pytest
from rich.color import Color
from rich.style import Style

from zerotools.cli.top.drawing.styled_lines import CURSOR
from zerotools.cli.top.screen.palette import styles_of

MEANINGS = {meaning for meaning in styles_of(None, colours=True) if not meaning.startswith(CURSOR)}


def brightness(color: Color) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [part / 255 for part in color.get_truecolor()]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_on_light_are_readable() -> None:
    for style in styles_of("light", colours=True).values():
        if style.color is not None:
            behind = 1.0 if style.bgcolor is None else brightness(style.bgcolor)
            assert (behind + 0.05) / (brightness(style.color) + 0.05) >= 3.6, style
            assert style.bgcolor is not None or 1.05 / (brightness(style.color) + 0.05) >= 4.5


def test_on_dark_and_unknown_the_terminals_own_colours_are_taken() -> None:
    for background in ("dark", None, "auto"):
        colours = [style.color for style in styles_of(background, colours=True).values()]
        assert all(color is None or color.number < 16 for color in colours)  # type: ignore[operator]


@pytest.mark.parametrize("background", ["light", "dark", None])
def test_without_colours_there_are_none(background: str | None) -> None:
    styles = styles_of(background, colours=False)
    assert styles.keys() == styles_of(background, colours=True).keys()
    assert all(style.color is None and style.bgcolor is None for style in styles.values())
    assert styles["bad"] == Style.parse("bold")


def test_what_is_under_the_cursor_is_never_shown_by_colour_alone() -> None:
    for meaning in MEANINGS:
        for background in ("light", "dark"):
            assert styles_of(background, colours=True)[f"{CURSOR}{meaning}"].bold
        assert styles_of(None, colours=True)[f"{CURSOR}{meaning}"].reverse
        assert styles_of("dark", colours=False)[f"{CURSOR}{meaning}"].reverse
