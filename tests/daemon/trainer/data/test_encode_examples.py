"""How far the reading of data is, in words."""

from pathlib import Path

from zerotoolsd.trainer.data.encode_examples import ReadingProgress


def test_bytes_rate_and_time_left(tmp_path: Path) -> None:
    now = [100.0]
    progress = ReadingProgress(clock=lambda: now[0])
    assert progress.describe() == ""
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "gone"]
    for path in paths[:2]:
        with path.open("wb") as file:
            file.truncate(100_000_000)
    read = progress.through(paths)
    next(read)
    progress.seen(50_000_000)
    now[0] += 10
    assert progress.describe() == "50 of 200 MB, 5.0 MB/s, 30 s left"
    next(read)
    assert progress.describe() == "100 of 200 MB, 10.0 MB/s, 10 s left"
    now[0] += 10
    # A second source: its rate is its own.
    assert [*read] == paths[2:]
    assert progress.describe() == "200 of 200 MB, 10.0 MB/s, 1 s left"
    assert [*progress.through(paths[:1])] == paths[:1]
    assert progress.describe() == "300 of 300 MB"


def test_time_alone_is_no_progress(tmp_path: Path) -> None:
    now, said = [0.0], list[str]()
    progress = ReadingProgress(clock=lambda: now[0])
    (tmp_path / "a").write_bytes(bytes(9_000_000))
    next(progress.through([tmp_path / "a"]))
    looks = iter([0, 0, 3_000_000, 3_000_000, 3_000_000, 6_000_000])

    def is_over() -> bool:
        now[0] += 5
        if (read := next(looks, None)) is None:
            return True
        progress.seen(read)
        return False

    progress.report_until(is_over, said.append)
    assert said == ["3 of 9 MB, 0.2 MB/s, 30 s left", "6 of 9 MB, 0.2 MB/s, 15 s left"]


def test_what_another_job_writes_is_progress() -> None:
    progress, said, writes = ReadingProgress(), list[str](), iter([0, 5_000_000, 5_000_000])

    def is_over() -> bool:
        if (written := next(writes, None)) is None:
            return True
        progress.others = written
        return False

    progress.report_until(is_over, said.append)
    assert said == ["another job tokenises this data: 5 MB written"]
