"""Private names of other packages: the table has those that the code uses, and they are there."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "private_names.py"))
KNOWN = SCRIPT["KNOWN"]


def test_the_table_has_the_names_that_the_code_uses_and_no_others() -> None:
    assert SCRIPT["found"]().keys() == KNOWN.keys()


def test_the_page_follows_from_the_code() -> None:
    assert SCRIPT["PAGE"].read_text("utf-8") == SCRIPT["page"](), "run scripts/private_names.py"


@pytest.mark.parametrize("name", KNOWN)
def test_the_installed_package_has_the_name_where_the_table_says(name: str) -> None:
    package, _, rest = KNOWN[name].file.partition("/")
    place = importlib.util.find_spec(package)
    if place is None or not place.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    file = Path(place.submodule_search_locations[0]) / rest
    assert file.stem == name or re.search(rf"(?<!\w){name}\b", file.read_text("utf-8"))
