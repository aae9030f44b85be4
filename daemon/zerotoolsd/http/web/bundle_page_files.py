"""Prepares the files of the page for sending: joins modules, removes comments and indents, and
compresses.

A browser shows a page sooner if it has few files, and one long text compresses better than its
parts. So the modules in `files/js` are joined into one script for each entry of `ENTRIES`, without
the imports between them. For this, no two modules of a script may define the same name.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).with_name("files")
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
ALONE = ("js/theme.js", "vendor/uplot/uPlot.js")
"""Scripts that are sent as they are."""
ENTRIES = ("main", "views", "welcome")
"""A script is sent for each of these modules: the module and all that it imports. Browsers read
`views` after `main`, so the script of `views` takes from `main` what both import.
"""
SHEETS = ("vendor/uplot/uPlot.min.css", "style.css", "views.css")
SHEET = "page.css"
"""The style sheets, and the name under which they are sent together."""
SMALLEST_GZIP = 512
_COMMENT = re.compile(r"^[ \t]*(?://[^\n]*|/\*.*?\*/)[ \t]*\n", re.M | re.S)
IMPORT = re.compile(r'^(?:import|export) \{ (.+) \} from "\./(\w+)\.js";\n', re.M)
_OTHER_IMPORT = re.compile(r'^import \w+ from "\.\./[^"]+";\n', re.M)


@dataclass(frozen=True)
class PageFile:
    """A file as it is sent; `tag` is its `ETag`."""

    data: bytes
    packed: bytes | None
    kind: str
    tag: str


@cache
def page_files(root: Path = ROOT) -> dict[str, PageFile]:
    """Return the files of the page as they are sent: name below `/page/` -> file."""
    plain = [path for path in root.rglob("*") if path.suffix in (".html", ".svg", ".txt")]
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(plain)}
    found |= {name: (root / name).read_bytes() for name in ALONE}
    found["js/theme.js"] = without_comments(found["js/theme.js"].decode()).encode()
    sheets = (without_comments((root / name).read_text("utf-8")) for name in SHEETS)
    found[SHEET] = "\n".join(sheets).encode()
    first = modules_of("main", root)
    for entry in ENTRIES:
        found[f"js/{entry}.js"] = joined(entry, first if entry == "views" else (), root).encode()
    return {name: _page_file(name, data) for name, data in found.items()}


def _page_file(name: str, data: bytes) -> PageFile:
    packed = gzip.compress(data, 9, mtime=0) if len(data) >= SMALLEST_GZIP else None
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    return PageFile(data, packed, TYPES[Path(name).suffix], tag)


def without_comments(text: str) -> str:
    """Return the script or style sheet `text` without empty lines, without indents, and without
    comments that have their own lines.
    """
    return re.sub(r"\n\s+", "\n", _COMMENT.sub("", text)).lstrip("\n")


def modules_of(entry: str, root: Path = ROOT) -> list[str]:
    """Return the names of `entry` and of all modules that it needs. Each module comes after the
    modules that it imports.
    """
    found = dict[str, None]()

    def add(name: str) -> None:
        for _, imported in IMPORT.findall(_text(name, root)):
            if imported not in found:
                add(imported)
        found[name] = None

    add(entry)
    return list(found)


def joined(entry: str, first: Collection[str] = (), root: Path = ROOT) -> str:
    """Return the script of `entry`: all modules that it needs. Modules in `first` are left out,
    because the script of `main` contains them.

    A comment with the name of each module comes before its code, so that the source of an error can
    be found.
    """
    own = [name for name in modules_of(entry, root) if name not in first]
    parts = []
    for name in own:
        text = IMPORT.sub("", _OTHER_IMPORT.sub("", _text(name, root)))
        parts.append(f"// {name}.js\n{without_comments(text)}")
    return "".join([*_imports(own, first, root), *parts])


def _imports(own: Iterable[str], first: Collection[str], root: Path) -> Iterator[str]:
    """Yield the import lines for everything that the modules `own` take from other scripts."""
    taken, others = set[str](), dict[str, None]()
    for name in own:
        text = _text(name, root)
        others |= dict.fromkeys(_OTHER_IMPORT.findall(text))
        for names, imported in IMPORT.findall(text):
            if imported in first:
                taken.update(names.split(", "))
    yield from others
    if taken:
        yield f'import {{ {", ".join(sorted(taken))} }} from "./main.js";\n'


def _text(name: str, root: Path) -> str:
    return (root / "js" / f"{name}.js").read_text("utf-8")
