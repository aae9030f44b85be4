from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import STEP, a_job, a_view, an_attempt
from tests.io.stores.far import served
from tests.ops.mirroring.made import place
from zerotools.cli.main import build, run
from zerotools.core.errors import BadRequest
from zerotools.ops.mirroring.prefix_owner import claim_prefix

JOB = """
device = "cpu"
ranks = 2
[model]
config = { model_type = "llama" }
[data]
text = ["data/*.txt"]
[train]
steps = 40
batch_size = 12
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(JOB, encoding="utf-8")
    return path


def test_submit_says_what_was_queued_and_what_next(
    zerotools: Command, service: FakeService, job_file: Path
) -> None:
    done = zerotools("submit", str(job_file))
    assert done == (
        0,
        "job 1 (tiny) is queued: 2 ranks on CPU, ZeRO stage 3, 40 steps\n"
        "  see the queue  zerotools queue\n"
        "  read its log   zerotools logs -f 1\n"
        "  stop it        zerotools cancel 1\n",
        "",
    )
    assert service.views[1].spec["data"]["text"] == [str(job_file.parent / "data" / "*.txt")]


def test_the_name_and_json(zerotools: Command, job_file: Path) -> None:
    done = zerotools("submit", str(job_file), "--name", "other", "--json")
    assert [job["name"] for job in json.loads(done.out)["jobs"]] == ["other"]


def test_nothing_is_queued_if_one_file_is_wrong(
    zerotools: Command, service: FakeService, job_file: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(JOB + "stepps = 3\n", encoding="utf-8")
    done = zerotools("submit", str(job_file), str(wrong))
    assert done.status == 2
    assert done.err == (
        f"error: {wrong}:11: train.stepps: unknown key\nhint: did you mean train.steps?\n"
    )
    assert service.views == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such job file"),
        (b"a = 1\n\xff", ":2: is not UTF-8 text (byte 6)\nhint: save it as UTF-8"),
        ("a = 1".encode("utf-16"), "is UTF-16\nhint: save it as UTF-8"),
        (b"#" * (2 << 20), "a job file may have at most 1048576 bytes, but this one has more"),
        (b"a = [", "is not valid TOML"),
    ],
)
def test_files_that_are_no_job(
    content: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.toml"
    if content is not None:
        path.write_bytes(content)
    assert run(build(), ["submit", str(path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: {path}:")
    assert said in shown


def test_a_byte_order_mark_is_no_part_of_a_job(
    zerotools: Command, service: FakeService, job_file: Path
) -> None:
    job_file.write_bytes(b"\xef\xbb\xbf" + job_file.read_bytes())
    assert zerotools("submit", str(job_file)).status == 0
    assert len(service.views) == 1


def test_a_directory_is_no_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build(), ["submit", str(tmp_path)]) == 2
    assert "cannot be read (Is a directory)" in capsys.readouterr().err


def test_follow_is_for_one_job(zerotools: Command, job_file: Path) -> None:
    done = zerotools("submit", "-f", str(job_file), str(job_file))
    assert (done.status, done.err) == (
        2,
        "error: --follow is for one job file, but 2 are given\n"
        "hint: submit each file with a separate command\n",
    )


CONFIGS = Path(__file__).parents[2] / "jobs" / "imports" / "configs"


def test_a_config_is_imported_on_the_way(
    zerotools: Command, service: FakeService, tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB.replace("ranks = 2", "").replace("40", "1000").replace("12", "32"))
    config = CONFIGS / "plain.json"
    done = zerotools("submit", str(job), "--deepspeed", str(config))
    assert (done.status, done.out.split("\n")[0]) == (
        0,
        "job 1 (job) is queued: 4 ranks on CPU, ZeRO stage 0, 1000 steps",
    )
    assert "gradient_clipping -> train.max_grad_norm" in done.err
    assert service.views[1].spec["train"]["warmup_steps"] == 100


def test_a_config_that_contradicts_the_job_queues_nothing(
    zerotools: Command, service: FakeService, job_file: Path
) -> None:
    config = CONFIGS / "plain.json"
    done = zerotools("submit", str(job_file), "--deepspeed", str(config))
    assert done.status == 2
    assert (
        f"train.batch_size: {job_file} train.batch_size says 12, "
        f"{config}:2 train_batch_size says 32\nhint: make them agree"
    ) in done.err
    assert service.views == {}


def test_a_dry_run_queues_nothing(zerotools: Command, service: FakeService, job_file: Path) -> None:
    done = zerotools("submit", "--dry-run", str(job_file))
    assert done == (0, "tiny would be queued: 2 ranks on CPU, ZeRO stage 3, 40 steps\n", "")
    told = json.loads(zerotools("submit", "--dry-run", "--json", str(job_file)).out)["specs"]
    assert told[0]["train"]["steps"] == 40
    assert zerotools("submit", "--dry-run", "-f", str(job_file)).status == 2
    service.error = BadRequest("data.text = a.txt: no file matches")
    refused = zerotools("submit", "--dry-run", str(job_file))
    assert refused == (2, "", f"error: {job_file}: data.text = a.txt: no file matches\n")
    assert service.views == {}


def test_of_an_array_the_first_job_s_place_is_asked_for(
    zerotools: Command, job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(monkeypatch) as store:
        names = [word for name in store.env for word in ("--env", name)]
        job_file.write_text(
            job_file.read_text() + f'\n[checkpoint]\nupload_to = "{place()}"\n', encoding="utf-8"
        )
        single = ("submit", "--dry-run", *names, str(job_file))
        array = (*single, "--array", "2")
        claim_prefix(place(), tmp_path / "alone", "job 1", None)
        assert f"{place()}: holds checkpoints of another run" in zerotools(*single).err
        assert "holds checkpoints" not in zerotools(*array).err
        claim_prefix(place("run/0"), tmp_path / "0", "job 2", None)
        assert f"{place('run/0')}: holds checkpoints of another run" in zerotools(*array).err


def test_a_dry_run_without_a_daemon_says_what_was_not_looked_at(
    tmp_path: Path, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = str(tmp_path / "none.sock")
    assert run(build(), ["submit", "--dry-run", "--socket", nobody, str(job_file)]) == 0
    told = capsys.readouterr()
    assert "tiny would be queued" in told.out
    assert told.err.startswith(
        "warning: the files of the job and the machine were not checked: nothing"
    )


def test_what_import_prints_is_accepted(
    zerotools: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, out = tmp_path / "job.toml", tmp_path / "out.toml"
    job.write_text(JOB.replace("ranks = 2", "").replace("40", "1000").replace("12", "32"))
    config = CONFIGS / "plain.json"
    wanted = ["import", str(job), "--deepspeed", str(config), "-o", str(out)]
    assert run(build(), wanted) == 0
    capsys.readouterr()
    imported = zerotools("submit", "--dry-run", "--name", "x", "--json", str(out))
    direct = zerotools(
        "submit", "--dry-run", "--name", "x", "--json", str(job), "--deepspeed", str(config)
    )
    assert imported.out == direct.out != ""


def test_nobody_answers(job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "no.sock"
    assert run(build(), ["submit", str(job_file), "--socket", str(path)]) == 5
    assert capsys.readouterr().err == (
        f"error: nothing answers at {path}\nhint: is zerotoolsd running? Start it with "
        "'zerotoolsd', or set ZEROTOOLS_SOCKET to its socket\n"
    )


class Prompt(FakeService):
    """A daemon whose jobs are over as soon as they are queued."""

    state = "succeeded"

    async def submit(self, *arguments: object, **keywords: object):  # type: ignore[no-untyped-def]
        view, is_new = await super().submit(*arguments, **keywords)  # type: ignore[arg-type]
        self.write(view.id, "progress.jsonl", json.dumps(STEP | {"step": 40}).encode() + b"\n")
        self.change(
            view.id,
            state=self.state,
            reason=None if self.state == "succeeded" else "rank 1 ended with status 64: no data",
            started=1.0,
            ended=33.0,
            attempts=(an_attempt(state="ended", ended=33.0),),
            progress=STEP | {"step": 40},
            latest_checkpoint={"step": 40, "path": "/out/step-00000040"},
            output_dir="/out",
            spec=view.spec | {"checkpoint": {"export_on_finish": "bf16"}},
        )
        return view, is_new


class TestFollow:
    @pytest.fixture
    def service(self, tmp_path: Path) -> Prompt:
        return Prompt(tmp_path / "state")

    def test_until_success(self, zerotools: Command, job_file: Path) -> None:
        done = zerotools("submit", "-f", str(job_file))
        assert (done.status, done.err) == (0, "")
        assert done.out == (
            "job 1 (tiny) is queued: 2 ranks on CPU, ZeRO stage 3, 40 steps\nstep 40/40  "
            "100%  loss 2.5000  grad 1.25  lr 3.0e-04  15,300 tokens/s  host peak 6.0 "
            "GiB\njob 1 (tiny) succeeded at step 40 of 40, after 32 s\n  contents      "
            "zerotools inspect /out/step-00000040\n  the model    /out/export\n"
        )

    def test_a_failure_is_status_6(
        self, zerotools: Command, service: Prompt, job_file: Path
    ) -> None:
        service.state = "failed"
        done = zerotools("submit", "-f", str(job_file))
        assert (done.status, done.err) == (
            6,
            "error: job 1 (tiny) failed at step 40 of 40, after 32 s: rank 1 ended with "
            "status 64: no data\nhint: its log: zerotools logs 1\n",
        )

    def test_json_has_the_job_that_failed(
        self, zerotools: Command, service: Prompt, job_file: Path
    ) -> None:
        service.state = "failed"
        done = zerotools("submit", "-f", "--json", str(job_file))
        told = json.loads(done.out)
        assert [job["state"] for job in told["jobs"]] == ["failed"]
        assert [each["code"] for each in told["errors"]] == ["job_failed"]

    def test_json_has_the_end_and_nothing_else(self, zerotools: Command, job_file: Path) -> None:
        done = zerotools("submit", "-f", "--json", str(job_file))
        assert [job["state"] for job in json.loads(done.out)["jobs"]] == ["succeeded"]
        assert "step 40/40" in done.err


def test_a_lost_answer_is_asked_for_again_with_the_same_key(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = json.dumps(a_view(5, a_job()).to_json()).encode()
    answers = [b"", b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer)]
    bodies = []
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "s"))
    server.listen()

    def serve() -> None:
        for reply in answers:
            link, _ = server.accept()
            with link, link.makefile("rb") as request:
                length = next(int(line[15:]) for line in request if line.startswith(b"Content-Len"))
                while request.readline() != b"\r\n":
                    pass
                bodies.append(json.loads(request.read(length)))
                link.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    assert run(build(), ["submit", str(job_file), "--socket", str(tmp_path / "s")]) == 0
    thread.join(10)
    server.close()
    assert capsys.readouterr().out.startswith("job 5 (tiny) is queued")
    assert bodies[0]["idempotency_key"]
    assert bodies[0] == bodies[1]


def test_a_key_of_ones_own_queues_one_job(
    zerotools: Command, service: FakeService, job_file: Path
) -> None:
    again = "job 1 (tiny) is running (already submitted before): "
    for said in ("job 1 (tiny) is queued: ", again):
        done = zerotools("submit", str(job_file), "--idempotency-key", "tiny-1")
        assert done.out.startswith(said)
        service.change(1, state="running", attempts=(an_attempt(),))
    assert len(service.views) == 1
    done = zerotools("submit", str(job_file), str(job_file), "--idempotency-key", "x")
    assert (done.status, "--idempotency-key is for one job file, but 2 are given" in done.err) == (
        *(2, True),
    )


def test_one_file_is_for_all_nodes(
    zerotools: Command, service: FakeService, job_file: Path
) -> None:
    refused = zerotools("submit", str(job_file), "--node-rank", "1")
    assert refused.status == 2
    assert "the job has no [rendezvous]" in refused.err
    meeting = '[rendezvous]\naddress = "10.0.0.1:29500"\nnodes = 3\n'
    text = job_file.read_text("utf-8").replace("[model]", f'output_dir = "/out"\n{meeting}[model]')
    job_file.write_text(text, "utf-8")
    assert zerotools("submit", str(job_file), "--node-rank", "2").status == 0
    spec = service.views[1].spec
    assert spec["rendezvous"]["node_rank"] == 2
    assert spec["rendezvous"]["nodes"] == 3
    assert "has the nodes 0 to 2" in zerotools("submit", str(job_file), "--node-rank", "3").err
