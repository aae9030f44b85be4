"""A whole output in an object store, taken away in an order in which it is whole or not there.

The record of `far_staging` is put first, of a run that no marker names: from then on readers refuse
what is left. Then the marker goes, the other objects, and the record last. A removal that is killed
leaves what a killed run leaves.
"""

from __future__ import annotations

import json
import uuid

from zerotools import __version__
from zerotools.core.errors import BadRequest
from zerotools.io.output.far_staging import SCHEMA
from zerotools.io.output.marker import MARKER
from zerotools.io.output.writing_name import WRITING
from zerotools.io.output.writing_record import read_writing
from zerotools.io.stores.store_path import StorePath
from zerotools.io.stores.writing import forget, put_object, remove_objects


def remove_output(destination: StorePath) -> None:
    """Remove every object below `destination`, an output that is there whole or in part.

    Raises:
        BadRequest: objects are there that no run of zerotools has written; nothing is removed.
    """
    forget(destination)
    names = [path.relative_to(destination).as_posix() for path in destination.below()]
    if not names:
        return
    if MARKER not in names and WRITING not in names:
        raise BadRequest(
            f"{destination} was not written by zerotools: it has neither {MARKER} nor {WRITING}; "
            "nothing there is removed"
        )
    files = sorted({*names} - {MARKER, WRITING})
    if WRITING in names and MARKER not in names:
        files = sorted({*files} & {*read_writing(destination)["files"]})
    tree = {
        "schema": SCHEMA,
        "run": uuid.uuid4().hex,
        "command": "remove",
        "version": __version__,
        "identity": {},
        "files": files,
        "done": {},
    }
    put_object(destination / WRITING, json.dumps(tree).encode())
    remove_objects([destination / MARKER])
    remove_objects(destination / name for name in files)
    remove_objects([destination / WRITING])
