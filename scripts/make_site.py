"""Build the documentation site from docs/ into site/, without a network.

    python scripts/make_site.py

`scripts/docs` runs it with the extra `docs`. The site has one folder per version, `site/0.3` in
English and `site/zh/0.3` in Chinese. The lists of docs/README.md and docs/zh/README.md are their
navigation. A broken link ends the build with status 1, and so does a file that a page would load
from another server.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
DOCS, SITE, STAGED = ROOT / "docs", ROOT / "site", ROOT / "build/site"
CHINESE_START = "README.zh-CN.md"
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
FENCE_FILE = re.compile(r"\A(```\w+) file=(\S+)$", re.MULTILINE)
FENCE_VARIANT = re.compile(r"\A(```\w+) variant=\w+$", re.MULTILINE)
PROMPTS = re.compile(r"```console\n(?:\$ .*\n(?:(?<=\\\n).*\n)*)+```")
"""Commands without output."""
WIDE = "---\nhide: [navigation, toc]\n---\n"
"""The start page has no lists of pages and headings next to its text."""
TABS = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- end of tabs -->$", re.MULTILINE | re.DOTALL)
TAB_TITLE = re.compile(r"\*\*(.+)\*\*")
SWITCH = re.compile(r'href="[^"]*" hreflang="(\w+)"')
"""A link of the language switch."""


@dataclass(frozen=True)
class Language:
    """A site in one language: where its pages are built, and what its links to pages become."""

    code: str
    name: str
    pages: dict[Path, str]
    """The pages, by file: the names that they have in the site."""
    place: str
    """The folder of its versions in `site`."""
    index: Path
    """The page that lists all pages."""
    home: str
    overview: str
    """The titles of the start page and of the index in the navigation."""


def main() -> None:
    version = ".".join(_base_version().split(".")[:2])
    english, chinese = languages()
    shutil.rmtree(STAGED, ignore_errors=True)
    for language in (english, chinese):
        _build(language, version)
        _list_versions(language, version)
    (SITE / "index.html").write_text(_redirect(f"{version}/index.html"))
    if found := list(faults(SITE / version)) + list(faults(SITE / chinese.place / version)):
        sys.exit("\n".join(found))
    print(f"wrote {SITE.relative_to(ROOT)}/{version} and {SITE.relative_to(ROOT)}/zh/{version}")


def _base_version() -> str:
    [base] = re.findall(r'^BASE = "(.+)"$', (ROOT / "zerotools/version.py").read_text(), re.M)
    return str(base)


@cache
def languages() -> tuple[Language, Language]:
    """The English and the Chinese site, in which a page and its translation have the same name."""
    english = {
        page: str(page.relative_to(DOCS))
        for page in sorted(DOCS.rglob("*"))
        if page.is_file() and page.parent.name != "zh"
    }
    english[DOCS / "README.md"] = "pages.md"
    twins = {Path(name).name: name for name in english.values() if name.endswith(".md")}
    twins["README.md"] = "pages.md"
    chinese = {page: twins[page.name] for page in sorted((DOCS / "zh").glob("*.md"))}
    chinese |= {ROOT / CHINESE_START: "quick-start.md", DOCS / "site.css": "site.css"}
    return (
        Language("en", "English", english, ".", DOCS / "README.md", "Home", "All pages"),
        Language("zh", "中文", chinese, "zh", DOCS / "zh/README.md", "首页", "全部页面"),
    )


def navigation(language: Language) -> list[dict[str, object]]:
    """The titles of the index and their pages, in its order; a heading has a list of them."""
    entries: list[dict[str, object]] = [{language.home: "index.md"}]
    section: list[dict[str, object]] = entries
    group = section
    for line in language.index.read_text("utf-8").splitlines():
        if heading := re.fullmatch(r"(##|###) (.+)", line):
            group = []
            if heading[1] == "##":
                section = group
                entries.append({heading[2]: group})
            else:
                section.append({heading[2]: group})
        elif line.startswith("- "):
            group += [
                {found[1].replace("`", ""): found[2]}
                for found in re.finditer(r"\[([^\]]+)\]\(([^)#]+)\)", line)
            ]
    return [*entries, {language.overview: "README.md"}]


def staged(text: str, page: Path, language: Language, version: str) -> str:
    """A page as the generator reads it: its links lead to pages of the site or to the repository,
    names of files are titles of their code, and bold titles between the marks of tabs are tabs."""
    parts = FENCE.split(text)
    for place, part in enumerate(parts):
        if place % 2:
            part = FENCE_VARIANT.sub(r"\1", FENCE_FILE.sub(r'\1 title="\2"', part))
            if PROMPTS.fullmatch(part):  # they would be copied
                part = part.replace("```console", "```sh").replace("\n$ ", "\n")
            parts[place] = part
        else:
            parts[place] = LINK.sub(
                lambda found: f"{found[1]}{_target(found[2], page, language, version)})", part
            )
    head = WIDE if language.pages[page] == "index.md" else ""
    return head + TABS.sub(lambda found: _tabs(found[1]), "".join(parts))


def _tabs(text: str) -> str:
    """Tabs, from paragraphs below bold titles."""
    lines = []
    for line in text.splitlines():
        title = TAB_TITLE.fullmatch(line)
        lines.append(f'=== "{title[1]}"' if title else f"    {line}".rstrip())
    return "\n".join(lines)


def _target(target: str, page: Path, language: Language, version: str) -> str:
    """What a link of `page` becomes.

    Raises:
        SystemExit: the file does not exist.
    """
    path, mark, anchor = target.partition("#")
    if not path or "://" in path:
        return target
    file = Path(os.path.normpath(page.parent / path))
    if not file.exists():
        sys.exit(f"{page.relative_to(ROOT)} links to {path}, which does not exist")
    here = Path(language.pages[page]).parent
    if file in language.pages:
        return os.path.relpath(language.pages[file], here) + mark + anchor
    for other in languages():
        if file in other.pages:
            away = Path(other.place, version, other.pages[file])
            away = away.with_suffix(".html") if file.suffix == ".md" else away
            return os.path.relpath(away, Path(language.place, version, here)) + mark + anchor
    return f"{_repository()}/blob/main/{file.relative_to(ROOT)}{mark}{anchor}"


def _repository() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["urls"]["Repository"])


def _build(language: Language, version: str) -> None:
    work = STAGED / language.code
    for page, name in language.pages.items():
        (work / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            text = staged(page.read_text("utf-8"), page, language, version)
            (work / "docs" / name).write_text(text, "utf-8")
        else:
            shutil.copy(page, work / "docs" / name)
    (work / "zensical.toml").write_text(settings(language, version), "utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    if subprocess.run(command, cwd=work, check=False).returncode:
        sys.exit(f"the {language.name} site could not be built")
    place = SITE / language.place / version
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(work / "site", place)
    for page in place.rglob("*.html"):
        if page.name != "404.html":  # its links are absolute
            text = switched(page.read_text("utf-8"), page.relative_to(place), language, version)
            page.write_text(text, "utf-8")


def switched(text: str, page: Path, language: Language, version: str) -> str:
    """A built page with links to its translations, and to the start page where none exists."""
    here = Path(language.place, version, page).parent

    def target(found: re.Match[str]) -> str:
        [other] = [each for each in languages() if each.code == found[1]]
        is_there = str(page.with_suffix(".md")) in other.pages.values()
        away = Path(other.place, version, page if is_there else "index.html")
        return f'href="{os.path.relpath(away, here)}" hreflang="{other.code}"'

    return SWITCH.sub(target, text)


def settings(language: Language, version: str) -> str:
    """zensical.toml with the pages and the language."""
    text = (ROOT / "zensical.toml").read_text("utf-8")
    pages = _named(navigation(language), language, version)
    alternates = "".join(
        f'[[project.extra.alternate]]\nname = "{each.name}"\nlang = "{each.code}"\n'
        f'link = "{os.path.relpath(Path(each.place, version), Path(language.place, version))}/"\n'
        for each in languages()
    )
    text = text.replace("[project]\n", f"[project]\nnav = {_toml(pages)}\n", 1)
    text = text.replace("[project.theme]\n", f'[project.theme]\nlanguage = "{language.code}"\n', 1)
    return f"{text}\n{alternates}"


def _named(
    entries: list[dict[str, object]], language: Language, version: str
) -> list[dict[str, object]]:
    """The navigation with what its links become in the site."""
    named: list[dict[str, object]] = []
    for entry in entries:
        [(title, target)] = entry.items()
        if isinstance(target, list):
            named.append({title: _named(target, language, version)})
        else:
            named.append({title: _target(str(target), language.index, language, version)})
    return named


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return json.dumps(value)


def _list_versions(language: Language, newest: str) -> None:
    """Write versions.json, which the menu of versions reads."""
    place = SITE / language.place
    names = [each.name for each in place.iterdir() if re.fullmatch(r"\d+\.\d+", each.name)]
    names.sort(key=lambda name: tuple(map(int, name.split("."))), reverse=True)
    listed = [
        {"version": name, "title": name, "aliases": ["latest"] if name == newest else []}
        for name in names
    ]
    (place / "versions.json").write_text(json.dumps(listed))


def _redirect(target: str) -> str:
    refresh = f'<meta http-equiv="refresh" content="0; url={target}">'
    return f'<!doctype html>{refresh}<a href="{target}">zerotools</a>\n'


class _Page(HTMLParser):
    """What a page names: `links`, `loaded` files, and its `anchors`."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value for name, value in attrs if value}
        self.anchors |= {named[key] for key in ("id", "name") if key in named}
        is_near = tag == "link" and named.get("rel") in ("prev", "next")
        if "href" in named and (tag == "a" or is_near):
            self.links.append(named["href"])
        elif tag in ("img", "script", "link", "source"):
            self.loaded += [named[key] for key in ("src", "href") if key in named]


def faults(site: Path) -> Iterator[str]:
    """A line for each link to a page or heading that does not exist, and for each file that is
    loaded from another server."""
    pages: dict[Path, _Page] = {}
    for file in sorted(site.rglob("*.html")):
        pages[file] = _read(file)
    for file, page in pages.items():
        if file.name == "404.html":  # its links are absolute
            continue
        for target in (*page.links, *page.loaded):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loaded:
                    yield f"{file}: loads {target}, which is on another server"
                continue
            aim = Path(os.path.normpath(file.parent / unquote(parts.path))) if parts.path else file
            aim = aim / "index.html" if aim.is_dir() else aim
            if not aim.is_file():
                yield f"{file}: links to {target}, which does not exist"
            elif parts.fragment and aim.suffix == ".html":
                known = pages[aim] if aim in pages else _read(aim)
                if unquote(parts.fragment) not in known.anchors:
                    yield f"{file}: links to {target}, and the page has no such heading"


def _read(file: Path) -> _Page:
    page = _Page()
    page.feed(file.read_text("utf-8"))
    return page


if __name__ == "__main__":
    main()
