"""A strict reader of Prometheus' text format and of OpenMetrics, as far as we write them."""

from __future__ import annotations

import re

Sample = tuple[str, dict[str, str], float]

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
LINE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (NaN|[+-]Inf|-?[0-9.e+-]+)")
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
KINDS = {"gauge": ("",), "counter": ("",), "histogram": ("_bucket", "_sum", "_count")}


def read_page(text: str, *, openmetrics: bool) -> dict[str, list[Sample]]:
    """The samples of each family. Raises AssertionError: it is not as the format wants it."""
    assert text.endswith("\n")
    lines = text[:-1].split("\n")
    if openmetrics:
        assert lines.pop() == "# EOF"
    assert "" not in lines
    found: dict[str, list[Sample]] = {}
    name = kind = ""
    while lines:
        line = lines.pop(0)
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert re.fullmatch(NAME, name)
            assert name not in found, f"{name} stands twice"
            kind = lines.pop(0).removeprefix(f"# TYPE {name} ")
            assert kind in KINDS
            found[name] = []
            continue
        match = LINE.fullmatch(line)
        assert match, line
        ending = "_total" if openmetrics and kind == "counter" else ""
        assert match[1] in {f"{name}{ending}{suffix}" for suffix in KINDS[kind]}
        labels = {key: _plain(value) for key, value in re.findall(LABEL, match[2] or "")}
        found[name].append((match[1], labels, float(match[match.lastindex or 0])))
    keys = [(each[0], *sorted(each[1].items())) for rows in found.values() for each in rows]
    assert len(keys) == len(set(keys)), "a series stands twice"
    return found


def _plain(text: str) -> str:
    return re.sub(r'\\["\\n]', lambda match: ESCAPES[match[0]], text)
