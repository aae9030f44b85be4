"""A node of an OCDBT database that is lost takes along what it lists, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import zerotools
from tests.golden_files import GOLDEN
from tests.ops import exports
from zerotools.core.errors import BadFile

tensorstore = pytest.importorskip("tensorstore")

CASE = GOLDEN / "orbax-0.12.8" / "ocdbt"
NODE = bytes.fromhex("0cdb20de")


def opened(path: Path, **config: int) -> tensorstore.KvStore:
    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path}/"}, "config": config}
    return tensorstore.KvStore.open(spec).result()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What Orbax saved, in a database of small nodes, as that of a large model has many nodes."""
    run = Path(shutil.copytree(CASE / "checkpoint", tmp_path / "run"))
    item, saved = run / "1" / "items", opened(CASE / "checkpoint" / "1" / "items")
    for path in (item / "d", *item.glob("ocdbt.process_*")):
        shutil.rmtree(path)
    (item / "manifest.ocdbt").unlink()
    small = opened(item, max_decoded_node_bytes=4000, max_inline_value_bytes=0)
    transaction = tensorstore.Transaction()
    for key in saved.list().result():
        small.with_transaction(transaction)[key] = saved[key]
    transaction.commit_sync()
    return run


def nodes(run: Path) -> list[tuple[Path, int]]:
    """The file and the offset of each node."""
    found = []
    for path in sorted((run / "1" / "items" / "d").iterdir()):
        data, at = path.read_bytes(), -1
        while (at := data.find(NODE, at + 1)) >= 0:
            found.append((path, at))
    return found


def is_refused(run: Path) -> bool:
    try:
        zerotools.inspect(run)
    except BadFile as error:
        return "in a node of the database: its checksum is wrong" in str(error)
    return False


@pytest.mark.parametrize("has_all_chunks", [True, False])
def test_what_other_nodes_list_is_exported(run: Path, tmp_path: Path, has_all_chunks: bool) -> None:
    """Also where Orbax leaves chunks of zeros out: an absent chunk is no zero then."""
    described = run / "1" / "items" / "_METADATA"
    tree = json.loads(described.read_text())
    tree["store_array_data_equal_to_fill_value"] = has_all_chunks
    described.write_text(json.dumps(tree))
    truth = load_file(CASE / "truth.safetensors")
    kept = []
    for number, (path, at) in enumerate(nodes(run)):
        data = path.read_bytes()
        path.write_bytes(data[: at + 20] + bytes([data[at + 20] ^ 1]) + data[at + 21 :])
        if not is_refused(run):  # the newest version of the database does not have this node
            path.write_bytes(data)
            continue
        found = zerotools.salvage(run, tmp_path / str(number), dtype="fp32")
        assert len(found.weights) + len(found.left_out) >= 12
        assert not found.is_whole
        said = "\n".join(problem.message for problem in found.damage)
        assert path.name in said
        assert "Orbax wrote all" not in said
        if found.written:
            for name, values in exports.weights_of(tmp_path / str(number)).items():
                np.testing.assert_array_equal(values, truth[f"{name}|param"].astype(np.float32))
        kept.append(len(found.weights))
        path.write_bytes(data)
    assert len(kept) > 4
    assert max(kept) > 8
    assert min(kept) == 0  # the root
