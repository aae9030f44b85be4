"""The pages of `zerotools help`: lists them, and finds the page of a topic.

The topic of a page is the name of its file. A wheel has the folders of `docs` as `zerotools/pages`
(`hatch_build.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.cli.output.language import language
from zerotools.core.errors import BadRequest, Unsupported

_PACKAGE = Path(__file__).resolve().parents[1]
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
