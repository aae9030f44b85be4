"""How far the reading of data is, in words."""

from pathlib import Path

from zerotoolsd.trainer.data.progress import ReadingProgress


def test_bytes_rate_and_time_left(tmp_path: Path) -> None:
    now = [100.0]
    progress = ReadingProgress(clock=lambda: now[0])
    assert progress.words() == ""
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "gone"]
    for path in paths[:2]:
        with path.open("wb") as file:
            file.truncate(100_000_000)
    read = progress.through(paths)
    next(read)
    progress.seen(50_000_000)
    now[0] += 10
    assert progress.words() == "50 of 200 MB, 5.0 MB/s, 30 s left"
    next(read)
    assert progress.words() == "100 of 200 MB, 10.0 MB/s, 10 s left"
    now[0] += 10
    # A second source: its rate is its own.
    assert [*read] == paths[2:]
    assert progress.words() == "200 of 200 MB, 10.0 MB/s, 1 s left"
    assert [*progress.through(paths[:1])] == paths[:1]
    assert progress.words() == "300 of 300 MB"
