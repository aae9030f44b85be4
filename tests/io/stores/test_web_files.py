from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.stores.static import StaticServer
from tests.ops.exports import model, noise
from zerotools import formats
from zerotools.core.errors import BadFile, BadRequest, HostUnreachable, ZerotoolsError
from zerotools.io.stores.addresses import path_of

pytest.importorskip("obstore")


def names_at(url: str) -> list[str]:
    return sorted(each.name for each in path_of(url).iterdir())


def test_a_model_is_found_by_its_index(tmp_path: Path) -> None:
    model(tmp_path / "m", {"a": noise(3, 4)}, **{"config.json": "{}"})
    shard = tmp_path / "m" / "model-00001-of-00001.safetensors"
    (tmp_path / "m" / "model.safetensors").rename(shard)
    index = {"metadata": {}, "weight_map": {"a": shard.name, "b": "../../etc/passwd"}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "m" / "other.txt").write_text("is in no index")
    with StaticServer(tmp_path) as server:
        found = names_at(f"{server.url}/m")
    assert found == ["config.json", shard.name, "model.safetensors.index.json"]


def test_a_file_alone_is_read(tmp_path: Path) -> None:
    model(tmp_path / "m", {"a": noise(3, 4)})
    with StaticServer(tmp_path) as server:
        found = formats.read(path_of(f"{server.url}/m/model.safetensors"))
        assert [key.name for key in found.tensors] == ["a"]
        with pytest.raises(BadRequest, match="does not exist"):
            formats.read(path_of(f"{server.url}/n"))


def test_what_zerotools_wrote_is_listed_by_its_marker(tmp_path: Path) -> None:
    (tmp_path / "out" / "sub").mkdir(parents=True)
    files = {"a.pt": {"size": 1}, "sub/b.pt": {"size": 1}, "gone.pt": {"size": 1}}
    (tmp_path / "out" / ".zerotools-output.json").write_text(json.dumps({"files": files}))
    for name in ("a.pt", "sub/b.pt"):
        (tmp_path / "out" / name).write_text("x")
    with StaticServer(tmp_path) as server:
        assert names_at(f"{server.url}/out") == [".zerotools-output.json", "a.pt", "sub"]
        assert names_at(f"{server.url}/out/sub") == ["b.pt"]


@pytest.mark.parametrize("etags", [True, False])
def test_a_file_that_changes_is_named(tmp_path: Path, etags: bool) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(bytes(200_000))
    with StaticServer(tmp_path, etags=etags) as server:
        source = path_of(f"{server.url}/a.safetensors").open_source()  # type: ignore[attr-defined]
        assert source.read(10, 0) == bytes(10)
        file.write_bytes(b"1" * 200_000)
        os.utime(file, (1, 1))
        with pytest.raises(BadFile, match="changed while it was read"):
            source.read(10, 150_000)


def test_a_server_without_ranges_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(bytes(200_000))
    with StaticServer(tmp_path, ranges=False) as server:
        source = path_of(f"{server.url}/a.safetensors").open_source()  # type: ignore[attr-defined]
        with pytest.raises(ZerotoolsError, match="does not send ranges"):
            source.read(10, 0)


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(
        HostUnreachable, match=r"http://127.0.0.1:9/a.* cannot be read: the connection was refused"
    ):
        path_of("http://127.0.0.1:9/a").is_file()
