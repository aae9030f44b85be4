"""`zerotools show --plot`: curves over attempts, as text and as a picture."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import an_attempt
from zerotools.cli.job_views.job_curves import charts, curves_of, history
from zerotools.cli.output.text_charts import ROWS, NumberFormat, Series, chart_grid
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.join_attempt_curves import Curves


def chart(series: Sequence[Series], form: NumberFormat, **changes: Any) -> list[str]:
    """The rows of a chart, and the steps below them."""
    grid = chart_grid(series, form, **changes)
    assert grid is not None
    return [*grid.lines(series, "|"), grid.axis]


def step(number: int, **fields: Any) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": 8.0 / number, "rss_bytes": 2**30, **fields}


def lines(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@pytest.fixture
def job(service: FakeService) -> None:
    """Two attempts; the second resumes from step 4."""
    service.add(state="running", attempts=(an_attempt(1), an_attempt(2)))
    service.write(1, "progress.jsonl", lines(*(step(n) for n in range(1, 9))), attempt=1)
    later = [step(n, loss=1.0, gpu_peak_bytes=n * 2**30) for n in range(5, 2001)]
    service.write(1, "progress.jsonl", lines(*later), attempt=2)


@pytest.mark.usefixtures("job")
def test_a_chart_in_a_pipe_is_80_columns_wide_and_without_escapes(zerotools: Command) -> None:
    done = zerotools("show", "1", "--plot")
    assert (done.status, done.err) == (0, "")
    assert "\x1b" not in done.out
    shown = done.out.splitlines()
    assert max(map(len, shown)) == 80
    assert shown[:3] == ["job 1 (tiny)", "", "loss  1.0000"]
    shown = shown[2:]
    assert shown[1].startswith("  8.0000 ")
    assert shown[ROWS].startswith("  1.0000 ")
    assert shown[ROWS + 1] == "GPU memory, peak so far  2.0 TiB"
    assert any(line.startswith(" 2.0 TiB ") for line in shown)
    assert shown[-2].split() == ["step", "1", "1000", "2000"], "once, below all charts"
    assert shown[-1] == "host memory of rank 0  1.0 GiB, unchanged", "a flat curve is one line"


@pytest.mark.usefixtures("job")
def test_what_is_asked_for_must_fit_together(zerotools: Command, tmp_path: Path) -> None:
    for options, sentence in (
        (["-o", "x.png"], "-o x.png: needs --plot\nhint: give both"),
        (["--plot", "--json"], "the numbers in metrics.jsonl in the output_dir"),
        (["--plot", "-o", "x.txt"], "-o x.txt: must end in .png or .svg or .pdf"),
    ):
        done = zerotools("show", "1", *options)
        assert done.status == 2
        assert sentence in done.err


@pytest.mark.usefixtures("job")
def test_a_picture_is_drawn_where_matplotlib_is(zerotools: Command, tmp_path: Path) -> None:
    path = tmp_path / "loss.png"
    done = zerotools("show", "1", "--plot", "-o", str(path))
    if find_spec("matplotlib") is None:
        assert done.status == 2
        assert "pip install 'matplotlib>=3.8'" in done.err
        assert not path.exists()
        return
    assert (done.status, done.out) == (0, f"drawn: {path}\n"), done.err
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000
    nowhere = str(tmp_path / "no" / "x.svg")
    assert "cannot be written" in zerotools("show", "1", "--plot", "-o", nowhere).err


def test_a_job_without_curves() -> None:
    assert charts([("job 1", Curves())], 40, braille=True) == [
        "job 1",
        "",
        "loss: no values were reported",
    ]


def test_a_loss_of_nan_is_named() -> None:
    nan = float("nan")
    one, two = Curves(loss={1: 2.0}, not_finite={3: nan}), Curves(not_finite={5: nan, 4: nan})
    lines = charts([("job 1", one)], 80, braille=False)
    assert lines[1] == "the loss was not a number at step 3"
    lines = charts([("job 1", one), ("job 2", two)], 80, braille=False)
    assert lines[3] == "job 2: the loss was not a number at 2 steps, first at step 4"


def test_a_falling_line_in_stars() -> None:
    points = {n: float(12 - n) for n in range(1, 13)}
    drawn = chart([Series(points)], "{:.0f}".format, columns=30, braille=False)
    assert [line.index("*") for line in drawn[:-1]] == sorted(
        line.index("*") for line in drawn[:-1]
    )
    assert drawn[0].startswith(" 11 |*")
    assert drawn[ROWS - 1].rstrip().endswith("*")
    assert drawn[-1] == "     step 1                 12"
    assert all(len(line) <= 30 for line in drawn)


@pytest.mark.parametrize("points", [{7: 1.0}, {1: 2.0, 9: 2.0}, {1: 1e308, 2: -1e308}])
@pytest.mark.parametrize("braille", [True, False])
def test_any_values_can_be_drawn(points: dict[int, float], braille: bool) -> None:
    drawn = chart([Series(points)], "{:.3g}".format, columns=10, braille=braille)
    assert len(drawn) == ROWS + 1


def test_the_command_line_does_not_import_matplotlib() -> None:
    program = "import sys, zerotools.cli.commands.show; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"


def test_a_plot_fits_the_window() -> None:
    curves = Curves()
    curves.add_reports([step(n, gpu_peak_bytes=2**30) for n in range(1, 99)])
    curves.lr.update({n: 3e-4 - n * 1e-6 for n in range(1, 99)})
    for height in (24, 30, 60):
        drawn = charts([("job 1", curves)], 80, braille=True, height=height)
        assert height - 3 <= len(drawn) <= height
        assert drawn[0] == "job 1"


def test_a_long_name_is_cut_at_the_width() -> None:
    named = [(f"job {n} ({'a-long-name-' * 12})", Curves(loss={1: 2.0, 2: 1.0})) for n in (1, 2)]
    lines = charts(named, 60, braille=True, height=24)
    assert all(len(line) <= 60 for line in lines)
    assert lines[0].endswith("…")


def test_the_steps_of_resumed_jobs_come_first(
    zerotools: Command, service: FakeService, client: DaemonClient
) -> None:
    for _ in range(3):
        service.add(state="succeeded", attempts=(an_attempt(1),))
    spec = service.views[1].spec
    first, again = service.views[1].output_dir, service.views[2].output_dir
    service.change(2, spec={**spec, "resume_from": f"{first}/step-00000004"})
    service.change(3, spec={**spec, "resume_from": again}, output_dir=again)
    service.write(1, "progress.jsonl", lines(*(step(n) for n in range(1, 9))))
    service.write(2, "progress.jsonl", lines(*(step(n, loss=2.0) for n in range(5, 8))))
    service.write(3, "progress.jsonl", lines(*(step(n, loss=1.0) for n in range(8, 10))))
    assert [job["id"] for job in history(client, client.job(3))] == [1, 2, 3]
    joined = curves_of(client, client.job(3))
    assert list(joined.loss) == list(range(1, 10))
    assert [joined.loss[n] for n in (4, 5, 7, 8)] == [2.0, 2.0, 2.0, 1.0]
    assert [job["id"] for job in history(client, client.job(1))] == [1]


def test_several_jobs_are_drawn_over_one_another(zerotools: Command, service: FakeService) -> None:
    for number in (1, 2):
        service.add(state="succeeded", name=f"run-{number}", attempts=(an_attempt(1),))
        records = [step(n, loss=number + 1 / n, lr=number * 1e-4) for n in range(1, 9)]
        service.write(number, "progress.jsonl", lines(*records))
    done = zerotools("show", "run-1", "2", "--plot")
    shown = done.out.splitlines()
    assert shown[:2] == ["* job 1 (run-1)", "o job 2 (run-2)"]
    assert shown[3] == "loss  1.1250, 2.1250"
    assert "ooooo" in shown[3 + ROWS // 2]
    assert "*****" in shown[3 + ROWS]
    assert shown[-2] == "learning rate  1.0e-04, 2.0e-04, unchanged"
    refused = zerotools("show", "1", "2")
    assert (refused.status, "add --plot" in refused.err) == (2, True)
