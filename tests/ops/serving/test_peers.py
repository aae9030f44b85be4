"""Other programs read what is served: a client of S3, and that of the Hugging Face Hub."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.started import run
from tests.golden_files import JOB
from tests.ops.serving.served import Served, serving
from tests.ops.serving.test_byte_source import written

SHARDS: dict[str, object] = {"max_shard_bytes": 5000}
DOWNLOADING = """
from huggingface_hub import HfApi, snapshot_download
print(HfApi().model_info("local/model").sha)
print(snapshot_download("local/model"))
"""


def of_hub(served: Served, home: Path, program: str) -> str:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": served.url,
        "HF_TOKEN": served.credentials.token,
        "HF_HOME": str(home),
    }
    done = run(
        [sys.executable, "-c", program],
        timeout=120,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said: str = done.stdout
    return said


def test_obstore_reads_the_bucket(tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore")
    from obstore.store import S3Store

    files = written(JOB, tmp_path / "out", **SHARDS)
    with serving(JOB, **SHARDS) as served:
        store = S3Store(
            "model",
            endpoint=served.url,
            access_key_id=served.credentials.key_id,
            secret_access_key=served.credentials.secret,
            region="us-east-1",
            client_options={"allow_http": True},
        )
        listed = {each["path"]: each["size"] for page in obstore.list(store) for each in page}
        assert listed == {name: len(data) for name, data in files.items()}
        for name, data in files.items():
            assert bytes(obstore.get(store, name).bytes()) == data
            several = obstore.get_ranges(store, name, starts=[0, 9], ends=[4, 30])
            assert [bytes(each) for each in several] == [data[0:4], data[9:30]]
        with pytest.raises(FileNotFoundError):
            obstore.get(store, "none")


@pytest.mark.torch
def test_the_hub_s_client_downloads_it(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    files = written(JOB, tmp_path / "out", **SHARDS)
    with serving(JOB, **SHARDS) as served:
        sha, directory = of_hub(served, tmp_path / "home", DOWNLOADING).split()
        assert sha == served.model.revision
        found = {each.name: each.read_bytes() for each in Path(directory).iterdir()}
        assert found == files
