"""Values of a record, and how a message speaks of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.core.errors import BadFile

_MAX_COLUMNS = 20
_KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a table",
    bytes: "bytes",
    type(None): "null",
}


def column(place: str, tree: Mapping[str, Any], name: str, key: str) -> Any:
    """Return the value of a column, which `key` of the job names.

    Raises:
        BadFile: the column does not exist.
    """
    if name not in tree:
        raise BadFile(f'{place}: has no column "{name}" ({key}); it has {shown_names(tree)}')
    return tree[name]


def text_of(place: str, tree: Mapping[str, Any], name: str, key: str) -> str:
    """Return the text of a column, empty if it is null. Raises BadFile."""
    value = column(place, tree, name, key)
    return "" if value is None else checked_text(f'{place}: "{name}"', value)


def checked_text(what: str, value: Any) -> str:
    """Return `value`, which is text that can be encoded. Raises BadFile."""
    if not isinstance(value, str):
        raise BadFile(f"{what} is {kind_in_words(value)}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise BadFile(f"{what} has {half}, half a character: write the other half too") from None
    return value


def shown_names(tree: Mapping[str, Any]) -> str:
    """Return the columns of a record, only the first ones if there are many."""
    names = [str(name) for name in tree]
    shown = ", ".join(names[:_MAX_COLUMNS]) + (", ..." if len(names) > _MAX_COLUMNS else "")
    return shown or "none"


def kind_in_words(value: Any) -> str:
    """Return the name of the kind of `value`."""
    return _KINDS.get(type(value), "text" if isinstance(value, str) else type(value).__name__)
