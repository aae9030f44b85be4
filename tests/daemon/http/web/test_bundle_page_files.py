"""The files that a browser gets: what is in them, what they import, and how large they are."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections import Counter

from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.http.web.bundle_page_files import (
    ALONE,
    ENTRIES,
    IMPORT,
    ROOT,
    SHEETS,
    joined,
    modules_of,
    page_files,
    without_comments,
)

UPLOT = {
    "vendor/uplot/uPlot.js": ("19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
    "vendor/uplot/uPlot.min.css": (
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"
    ),
}
"""uPlot 1.6.32 as its package on the npm registry has it.

The script is `uPlot.iife.min.js` there.
"""
EXPORT = b"export default uPlot;\n"
"""The line that makes the published script a module."""
OWN_FILES = [path for path in ROOT.rglob("*") if path.is_file() and "vendor" not in path.parts]
LARGEST_LINES, MOST_PACKED_AT_FIRST, MOST_PACKED = 400, 24_000, 77_000


def test_the_library_is_as_it_was_published_with_its_licence() -> None:
    for name, digest in UPLOT.items():
        published = (ROOT / name).read_bytes().removesuffix(EXPORT)
        assert hashlib.sha256(published).hexdigest() == digest
    assert "MIT" in (ROOT / "vendor/uplot/LICENSE.txt").read_text()


def test_pages_name_files_that_are_there_and_nothing_else() -> None:
    for path in ROOT.glob("*.html"):
        text = path.read_text("utf-8")
        for name in re.findall(r'(?:src|href)="([^"]*)"', text):
            known = name.removeprefix("/page/") in page_files()
            assert known or name == "/" or name.startswith("#"), (path.name, name)
        assert "<style" not in text
        assert " style=" not in text
        assert not re.search(r"<script(?![^>]*\bsrc=)", text)
        assert not re.search(r'\son[a-z]+="', text)


def test_nothing_is_taken_from_elsewhere() -> None:
    for path in OWN_FILES:
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z0-9-]+\.[a-z]|@import|url\(", text), path.name


def test_scripts_import_what_is_there_and_make_no_markup_of_text() -> None:
    for path in ROOT.glob("js/*.js"):
        text = path.read_text("utf-8")
        for name in re.findall(r'from "([^"]+)"', text):
            assert (path.parent / name).is_file(), (path.name, name)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert len(text.splitlines()) <= LARGEST_LINES


DEFINED = re.compile(r"^(?:export )?(?:async )?(?:function\*?|class|const|let) +([\w$]+)", re.M)
FIRST = modules_of("main")


def text_of(name: str) -> str:
    return (ROOT / "js" / f"{name}.js").read_text("utf-8")


def test_every_module_is_in_one_script_and_those_of_later_views_are_in_another_one() -> None:
    scripts = {"main": FIRST, "welcome": modules_of("welcome")}
    scripts["views"] = [name for name in modules_of("views") if name not in FIRST]
    known = {path.stem for path in ROOT.glob("js/*.js")} - {"theme"}
    assert set().union(*scripts.values()) == known
    assert scripts.keys() == set(ENTRIES)
    assert not {"charts", "job_view", "machine_view"} & set(FIRST)
    assert [name for name in scripts["welcome"] if name in FIRST] == ["secrets"]
    loaded = re.findall(r'import\("([^"]+)"\)', "".join(map(text_of, FIRST)))
    assert loaded == ["./views.js"]


def test_imports_have_the_form_that_is_joined() -> None:
    for path in ROOT.glob("js/*.js"):
        text = path.read_text("utf-8")
        left = IMPORT.sub("", text).replace('import uPlot from "../vendor/uplot/uPlot.js";\n', "")
        assert not re.search(r"^import |^export [{*]|^export default", left, re.M)
        for names, module in IMPORT.findall(text):
            exported = re.findall(r"^export .*", text_of(module), re.M)
            assert set(names.split(", ")) <= set(DEFINED.findall("\n".join(exported)))


def test_no_name_is_defined_twice_in_a_script() -> None:
    for entry in ENTRIES:
        sent = page_files()[f"js/{entry}.js"].data.decode()
        imported = [name for names, _ in IMPORT.findall(sent) for name in names.split(", ")]
        own = [name for name in modules_of(entry) if entry != "views" or name not in FIRST]
        counted = Counter([*DEFINED.findall("\n".join(map(text_of, own))), *imported])
        assert [name for name, count in counted.items() if count > 1] == [], entry


def test_modules_come_after_what_they_import() -> None:
    for entry in ENTRIES:
        order = modules_of(entry)
        assert order[-1] == entry
        for at, name in enumerate(order):
            assert {module for _, module in IMPORT.findall(text_of(name))} <= set(order[:at])


def test_comments_are_not_sent_and_all_else_is() -> None:
    sheets = "\n".join((ROOT / name).read_text("utf-8") for name in SHEETS)
    texts = {"page.css": sheets, "js/theme.js": text_of("theme")}
    for entry in ENTRIES:
        own = modules_of(entry) if entry != "views" else set(modules_of("views")) - set(FIRST)
        texts[f"js/{entry}.js"] = "".join(map(text_of, own))
    for name, text in texts.items():
        code = IMPORT.sub("", text).split("\n")
        kept = {
            line.lstrip()
            for line in code
            if line and not re.match(r"\s*(//|/\*| \*|[^;{},]*\*/$)", line)
        }
        sent = page_files()[name].data.decode().split("\n")
        assert kept - set(sent) == set(), name
        for line in sent:
            named = re.fullmatch(r"// \w+\.js", line)
            assert named or not line.startswith(("//", "/*", " ")), line
            assert line.count("`") % 2 == 0, "a text of several lines could hold a comment"


def test_comments_at_the_end_of_a_line_stay_with_their_line() -> None:
    assert without_comments("// a\n/** b\n * c */\n\n  x = 1; // d\n") == "x = 1; // d\n"


def test_scripts_that_are_sent_alone_are_named() -> None:
    sent = {name for name in page_files() if name.endswith(".js")}
    assert sent == {*ALONE, *(f"js/{entry}.js" for entry in ENTRIES)}
    assert joined("views", FIRST).startswith('import uPlot from "../vendor/uplot/uPlot.js";\n')


def test_the_example_of_a_job_file_is_one() -> None:
    shown = re.search(r"const EXAMPLE = \[\n(.*?)^\]", text_of("submit_view"), re.S | re.M)
    assert shown is not None
    lines = re.findall(r"""^  (["'])(.*)\1,$""", shown[1], re.M)
    tree = tomllib.loads("\n".join(line for _, line in lines[2:]))
    assert job_from_dict(tree, source="example").gpus == 2


def test_it_is_small() -> None:
    sizes = {name: len(each.packed or each.data) for name, each in page_files().items()}
    first = ("index.html", "page.css", "icon.svg", "js/theme.js", "js/main.js")
    assert sum(map(sizes.__getitem__, first)) < MOST_PACKED_AT_FIRST
    assert sum(sizes.values()) - sizes["vendor/uplot/LICENSE.txt"] < MOST_PACKED
