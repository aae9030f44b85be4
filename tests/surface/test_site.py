"""The documentation site: its settings, navigation, pages, and pictures of terminals."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path, PurePath
from typing import Any
from xml.etree import ElementTree

import pytest

from scripts.terminal_pictures import DARK, LIGHT, Recording, screen_svg

ROOT = Path(__file__).resolve().parents[2]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "make_site.py"))
ENGLISH, CHINESE = SCRIPT["languages"]()
SVG = "{http://www.w3.org/2000/svg}"


def shown(entries: list[dict[str, Any]]) -> list[str]:
    """The pages of a navigation."""
    pages: list[str] = []
    for entry in entries:
        for target in entry.values():
            pages += shown(target) if isinstance(target, list) else [target]
    return pages


@pytest.mark.parametrize("language", [ENGLISH, CHINESE], ids=lambda each: each.code)
def test_the_navigation_has_every_page_once(language: Any) -> None:
    settings = tomllib.loads(SCRIPT["settings"](language, "0.3"))["project"]
    pages = [page for page in shown(settings["nav"]) if not page.startswith(("https://", "../"))]
    assert sorted(pages) == sorted(name for name in language.pages.values() if name.endswith(".md"))
    assert settings["theme"]["language"] == language.code
    assert [each["lang"] for each in settings["extra"]["alternate"]] == ["en", "zh"]


def test_every_page_but_references_has_a_translation() -> None:
    kinds = ("tutorial/", "how-to/", "explanation/")
    names = [name for name in ENGLISH.pages.values() if name.startswith(kinds)]
    assert len(names) > 75
    assert [name for name in names if name not in CHINESE.pages.values()] == []


@pytest.mark.parametrize(
    "page", [page for page in CHINESE.pages if page.suffix == ".md"], ids=lambda page: page.stem
)
def test_chinese_pages_lead_to_translations(page: Path) -> None:
    english = r"\[([^\[\]]*)\]\((?:\.\./|docs/)(?:tutorial|how-to|explanation)/"
    assert [*{*re.findall(english, page.read_text("utf-8"))} - {"English"}] == []


def outline(entries: list[dict[str, Any]]) -> list[Any]:
    """The names of pages, in their sections and groups."""
    targets = [target for entry in entries for target in entry.values()]
    return [
        outline(target) if isinstance(target, list) else PurePath(target).stem for target in targets
    ]


def test_both_navigations_have_the_same_pages_in_the_same_places() -> None:
    english, chinese = (outline(SCRIPT["navigation"](each)) for each in (ENGLISH, CHINESE))
    chinese[1].remove("README.zh-CN")
    assert chinese == english


@pytest.mark.parametrize("language", [ENGLISH, CHINESE], ids=lambda each: each.code)
def test_titles_of_a_section_differ(language: Any) -> None:
    for entry in SCRIPT["navigation"](language):
        [(_, section)] = entry.items()
        if isinstance(section, list):
            titles = [title for each in section for title in each]
            assert len(titles) == len(set(titles)) > 0


def test_links_lead_into_the_site_or_to_the_repository() -> None:
    page = ROOT / "docs/how-to/install.md"
    text = (
        "[a](convert.md#b) [c](../zh/first-job.md) [two\nlines](../../README.md) [d](https://x.org)"
    )
    assert SCRIPT["staged"](f"{text}\n```sh\n[a](b.md)\n```\n", page, ENGLISH, "0.3") == (
        "[a](convert.md#b) [c](../../zh/0.3/tutorial/first-job.html) "
        "[two\nlines](https://github.com/zerotools/zerotools/blob/main/README.md) [d](https://x.org)\n"
        "```sh\n[a](b.md)\n```\n"
    )
    start = ROOT / "README.zh-CN.md"
    assert SCRIPT["staged"]("[a](docs/how-to/install.md#b)", start, CHINESE, "0.3") == (
        "[a](../../0.3/how-to/install.html#b)"
    )


def test_both_languages_show_the_same_pictures() -> None:
    picture = "![a](../images/top.svg)"
    english, chinese = ROOT / "docs/how-to/verify-a-checkpoint.md", ROOT / "docs/zh/first-job.md"
    assert SCRIPT["staged"](picture, english, ENGLISH, "0.3") == picture
    away = "![a](../../../0.3/images/top.svg)"
    assert SCRIPT["staged"](picture, chinese, CHINESE, "0.3") == away


def test_the_start_page_has_the_width_of_the_window() -> None:
    for language in (ENGLISH, CHINESE):
        [start] = [page for page, name in language.pages.items() if name == "index.md"]
        assert SCRIPT["staged"]("a", start, language, "0.3").startswith("---\nhide:")


def test_the_switch_leads_to_the_translation_or_to_the_start_page() -> None:
    link = '<a href="./.." hreflang="zh"><a href="x" hreflang="en">'
    switched = SCRIPT["switched"]
    assert switched(link, Path("how-to/convert.html"), ENGLISH, "0.3") == (
        '<a href="../../zh/0.3/how-to/convert.html" hreflang="zh">'
        '<a href="convert.html" hreflang="en">'
    )
    assert switched(link, Path("reference/json.html"), ENGLISH, "0.3") == (
        '<a href="../../zh/0.3/index.html" hreflang="zh"><a href="json.html" hreflang="en">'
    )
    assert switched(link, Path("tutorial/first-job.html"), CHINESE, "0.3") == (
        '<a href="first-job.html" hreflang="zh">'
        '<a href="../../../0.3/tutorial/first-job.html" hreflang="en">'
    )


def test_a_link_to_no_file_ends_the_build() -> None:
    with pytest.raises(SystemExit, match=r"docs/README\.md links to lost\.md"):
        SCRIPT["staged"]("[a](lost.md)", ROOT / "docs/README.md", ENGLISH, "0.3")


def test_bold_titles_become_tabs_and_names_of_files_titles() -> None:
    text = (
        "<!-- tabs -->\n**DeepSpeed**\n\n```toml file=job.toml\na = 1\n```\n<!-- end of tabs -->\n"
    )
    assert SCRIPT["staged"](text, ROOT / "docs/README.md", ENGLISH, "0.3") == (
        '=== "DeepSpeed"\n\n    ```toml title="job.toml"\n    a = 1\n    ```\n'
    )


def test_prompts_are_shown_only_above_output() -> None:
    commands = "```console\n$ a \\\n  b\n$ c\n```\n"
    page = ROOT / "docs/README.md"
    assert SCRIPT["staged"](commands, page, ENGLISH, "0.3") == "```sh\na \\\n  b\nc\n```\n"
    answered = "```console\n$ a\nb\n```\n"
    assert SCRIPT["staged"](answered, page, ENGLISH, "0.3") == answered


def test_what_a_built_page_lacks_or_loads_from_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="b"></h1><a href="#b"></a><a href="a.html#c"></a><a href="d.html"></a>'
        '<a href="https://x.org"></a><script src="https://x.org/e.js"></script>'
    )
    assert [line.partition(": ")[2] for line in SCRIPT["faults"](tmp_path)] == [
        "links to a.html#c, and the page has no such heading",
        "links to d.html, which does not exist",
        "loads https://x.org/e.js, which is on another server",
    ]


def test_a_recording_shows_each_line_until_it_changes() -> None:
    recording = Recording(40, 2)
    recording.type("a <b>")
    recording.play([(0.5, b"\x1b[31m10 %\x1b[0m\r"), (1.0, b"20 %\r\n"), (2.0, b"done\r\n")])
    svg = ElementTree.fromstring(recording.svg("title"))
    shown = ["".join(line.itertext()) for line in svg.iter(f"{SVG}g") if line.get("class")]
    assert shown[-3:] == ["10 %", "20 %", "done"]
    assert "$ a <b>" in "".join(shown)
    assert "translateY(-17px)" in "".join(svg.itertext()), "two lines fit, and there are three"


def test_a_screen_is_drawn_as_it_was_when_it_showed_the_text() -> None:
    output = [(0.0, b"\x1b[2J\x1b[Hone"), (1.0, b"\x1b[2J\x1b[Htwo")]
    drawn = screen_svg("title", output, (10, 2), lambda text: "one" in text)
    assert ">one<" in drawn
    assert ">two<" not in drawn
    with pytest.raises(ValueError, match="the last one is\ntwo"):
        screen_svg("title", output, (10, 2), lambda text: "three" in text)


def test_a_screen_is_drawn_in_the_colours_of_its_background_with_faint_text() -> None:
    output = [(0.0, b"\x1b[2mfaint\x1b[22m \x1b[38;2;2;2;2mrgb\x1b[39m \x1b[2;33mold\x1b[0m new")]
    for scheme in (DARK, LIGHT):
        drawn = screen_svg("title", output, (20, 1), bool, scheme)
        root = ElementTree.fromstring(drawn)
        looks = {
            each.text: (each.get("class"), each.get("style")) for each in root.iter(f"{SVG}text")
        }
        assert looks == {
            "faint": ("q", None),
            "rgb": (None, "fill:#020202"),
            "old": ("q", f"fill:{scheme.colours['brown']}"),
            "new": (None, None),
        }
        assert f'fill="{scheme.paper}"' in drawn
