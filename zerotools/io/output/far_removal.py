"""Removal of an output in an object store, in an order that never shows a part of it.

The record of `far_staging` is put first, for a run that no marker names: then readers refuse the
rest. The marker is removed next, then the other objects, and the record last. A killed removal
leaves the same state as a killed run.
"""

from __future__ import annotations

import json
import uuid

from zerotools.io.output.far_staging import SCHEMA, ForeignObjects
from zerotools.io.output.marker import MARKER, marked_files
from zerotools.io.output.writing_name import WRITING
from zerotools.io.output.writing_record import read_writing
from zerotools.io.stores.store_path import StorePath
from zerotools.io.stores.writing import forget, put_object, remove_objects
from zerotools.version import version


def remove_output(destination: StorePath, *, leave_foreign: bool = False) -> None:
    """Remove the objects of an output at `destination`, whole or in part.

    Raises:
        ForeignObjects: there are others too, and they must not stay; or the output does not exist.
        Nothing
            is removed.
        BadRequest: the list of the output's objects cannot be read.
    """
    forget(destination)
    names = {path.relative_to(destination).as_posix() for path in destination.below()}
    if not names:
        return
    if MARKER not in names and WRITING not in names:
        raise ForeignObjects(
            f"{destination} was not written by zerotools: it has neither {MARKER} nor {WRITING}; "
            "its objects are kept"
        )
    own = marked_files(destination) if MARKER in names else set[str]()
    if WRITING in names:
        own |= {*read_writing(destination)["files"]}
    foreign = sorted(names - own - {MARKER, WRITING})
    if foreign and not leave_foreign:
        raise ForeignObjects(
            f"{destination} holds objects that zerotools did not write, such as {foreign[0]}; "
            "move them elsewhere: no objects were removed"
        )
    files = sorted(names & own)
    tree = {
        "schema": SCHEMA,
        "run": uuid.uuid4().hex,
        "command": "remove",
        "version": version(),
        "identity": {},
        "files": files,
        "done": {},
    }
    put_object(destination / WRITING, json.dumps(tree).encode())
    remove_objects([destination / MARKER])
    remove_objects(destination / name for name in files)
    remove_objects([destination / WRITING])
