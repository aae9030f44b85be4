"""`zerotools estimate` as people call it."""

from __future__ import annotations

import json
import sys
import tomllib
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from harness.started import run as start
from tests.cli.conftest import Command, Done
from tests.golden_files import DEEPSPEED
from tests.ops.estimate.tiny_configs import config
from zerotools.cli.main import build, run
from zerotools.cli.output.language import columns_of, has_wide
from zerotools.jobs.jobfile.parse import parse_job
from zerotools.ops.estimate.model_families import FAMILIES

MACHINE = ("--gpus", "8", "--gpu-memory", "80GiB", "--host-memory", "512GiB")
JOB = """
gpus = 2
[model]
path = "model"
[data]
text = ["text"]
sequence_length = 64
[train]
steps = 1
batch_size = 8
"""
OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor", "muon", "adamw8bit")


@pytest.fixture
def estimate(capsys: pytest.CaptureFixture[str]) -> Command:
    """`estimate("7B", "--json")`, in this process."""

    def invoke(*arguments: str) -> Done:
        capsys.readouterr()
        status = run(build(), ["estimate", *arguments])
        return Done(status, *capsys.readouterr())

    return invoke


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config("llama")))
    return directory


def test_the_page_has_the_table_the_choice_and_the_terms(estimate: Command) -> None:
    done = estimate("7B", *MACHINE)
    assert done.status == 0
    assert "1      none" in done.out
    assert "stage 1 is the fastest that fits: stage 0 takes" in done.out
    unmeasured = [line for line in done.out.splitlines() if "not measured" in line]
    assert [line.split()[0] for line in unmeasured] == ["allocator"]
    assert max(map(len, done.out.splitlines())) <= 80


def test_one_is_one_and_several_are_several(estimate: Command) -> None:
    one = estimate("7B", *MACHINE, "--sequence-length", "1").out
    assert " computes 1 sequence of 1 token at a time\n" in one
    tight = (*MACHINE, "--stage", "1", "--sequence-length", "4096")
    few = estimate("7B", *tight[:3], "60GiB", *tight[4:]).out
    assert "with these settings, 1 sequence of 4,096 tokens fits at a time" in " ".join(few.split())
    assert "8 GPUs of 60.0 GiB" in few


def test_where_nothing_fits_the_status_is_7(estimate: Command) -> None:
    small = ("--gpus", "1", "--gpu-memory", "8GiB", "--host-memory", "9GiB")
    done = estimate("70B", *small)
    assert done.status == 7
    assert "nothing fits" in done.out


def test_json_has_bytes(estimate: Command, model: Path) -> None:
    done = estimate(str(model), *MACHINE, "--stage", "2", "--json")
    found = json.loads(done.out)
    assert {row["stage"] for row in found["rows"]} == {2}
    assert found["configs"]["job"]["model"] == {"path": str(model)}
    assert found["choice"]["peak_bytes"] > 0


def test_a_job_file_has_its_own_ranks(estimate: Command, model: Path) -> None:
    file = model.parent / "job.toml"
    file.write_text(JOB)
    done = estimate(str(file), *MACHINE[2:], "--json")
    found = json.loads(done.out)
    assert done.status == 0
    assert found["machine"]["gpus"] == 2
    assert found["asked"]["stage"] == 3
    assert found["micro_batch"]["sequences"] == 4
    refused = estimate(str(file), "--batch", "2", "--precision", "fp16")
    assert refused.status == 2
    assert f"--batch, --precision: {file} already has this value" in refused.err


def test_a_deepspeed_config_beside_a_model(estimate: Command, model: Path) -> None:
    file = model.parent / "ds.json"
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    file.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": zero}))
    given = ("--deepspeed", str(file), "--batch", "2", "--sequence-length", "32", "--json")
    done = estimate(str(model), *MACHINE, *given)
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert (found["asked"]["stage"], found["asked"]["offload"]) == (2, "optimizer")
    assert found["micro_batch"]["sequences"] == 2
    assert found["micro_batch"]["sequence_length"] == 32


def test_a_config_that_says_no_batch_asks_for_it(estimate: Command, model: Path) -> None:
    file = model.parent / "ds.json"
    file.write_text(json.dumps({"train_batch_size": "auto", "zero_optimization": {"stage": 3}}))
    refused = estimate(str(model), *MACHINE, "--deepspeed", str(file))
    assert refused.status == 2
    assert "give --batch N" in refused.err
    done = estimate(str(model), *MACHINE, "--deepspeed", str(file), "--batch", "4", "--json")
    assert json.loads(done.out)["micro_batch"]["sequence_length"] == 64


@pytest.mark.parametrize("kind", ["job", "deepspeed", "accelerate"])
def test_a_config_alone(estimate: Command, kind: str) -> None:
    done = estimate("7B", *MACHINE, "--print", kind)
    assert done.status == 0
    if kind == "deepspeed":
        assert json.loads(done.out)["zero_optimization"]["stage"] == 1
    assert "stage" in done.out
    assert "fits  " not in done.out
    assert "not measured" not in done.out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("7B", "--gpus", "0"), "0 is not in the range"),
        (("7B", "--gpu-memory", "80XB"), "is not a size"),
        (("7B", "--gpu-memory", "80TiB"), "--gpu-memory is 81,920 GiB, and no GPU has more"),
        (("7B", "--host-memory", "900TiB"), "no machine has more than 65,536 GiB"),
        (("7B", "--sequence-length", "0"), "0 is not in the range"),
        (("nowhere",), "is neither an existing file or directory nor a number"),
        (("7B", "--deepspeed", "ds.json"), "name a model directory"),
        (("7B", "--lenient"), "--lenient repairs a config, and no"),
        (("70B", "--gpus", "1", "--gpu-memory", "1GiB", "--print", "job"), "no config fits"),
        (
            ("7B", "--gpus", "4x24", "--gpu-memory", "24GiB"),
            "already gives the memory of each card",
        ),
        (("7B", "--gpus", "2xRTX 9999"), "is not a known card"),
        (("7B", "--ram", "64", "--host-memory", "64GiB"), "leave one of them out"),
        (("7B", "--way", "2"), "--way works only with --print or --write"),
        (("7B", *MACHINE, "--write", "a.toml", "--way", "9"), "--way 9: only 1 way fits"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(estimate: Command, given: tuple[str, ...], said: str) -> None:
    done = estimate(*given)
    assert done.status == 2
    assert said in " ".join(done.err.split())


def test_a_config_needs_neither_torch_nor_numpy(model: Path) -> None:
    program = (
        "import sys\n"
        "from zerotools.cli.main import build, run\n"
        "run(build(), sys.argv[1:])\n"
        "print([n for n in ('torch', 'numpy', 'transformers') if n in sys.modules])"
    )
    command = [sys.executable, "-c", program, "estimate", str(model), *MACHINE]
    done = start(command, timeout=60, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


CARDS = ("--gpus", "4x24", "--ram", "128", "--sequence-length", "2048")


def test_the_example_of_the_documents_is_what_it_prints(estimate: Command) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "will-it-fit.md").read_text()
    assert " ".join(("$ zerotools estimate 13B", *CARDS)) in page
    shown = page.split("```text\n")[1].split("```")[0]
    assert estimate("13B", *CARDS).out == shown


def test_the_verdict_is_the_first_line(estimate: Command, model: Path) -> None:
    first = " ".join(estimate("13B", *CARDS).out.split("\n\n")[0].split())
    assert first == (
        "yes: 13B fits with activation checkpointing, an 8-bit optimizer and the optimizer in host "
        "memory, at stage 3"
    )
    assert estimate("7B", *MACHINE).out.startswith("yes: 7B fits at stage 1\n")
    small = ("--gpus", "1x8", "--ram", "9")
    assert estimate("70B", *small).out.startswith("no: nothing fits: the nearest is stage ")
    job = model.parent / "job.toml"
    job.write_text(JOB)
    done = estimate(str(job), "--gpu-memory", "1400MiB", "--host-memory", "64GiB")
    assert done.status == 0
    assert done.out.startswith("yes: the job fits as it is written\n")
    tight = estimate(str(job), "--gpu-memory", "1361MiB", "--host-memory", "64GiB")
    assert tight.status == 7
    assert tight.out.startswith("no: the job does not fit as it is written; it fits with ")


def test_the_json_has_every_way_with_its_keys(estimate: Command) -> None:
    found = json.loads(estimate("13B", *CARDS, "--json").out)
    ways = found["ways"]
    assert ways[0]["keys"] == {
        "train.activation_checkpointing": True,
        "train.optimizer": "adamw8bit",
        "zero.stage": 3,
        "offload.optimizer": "cpu",
    }
    assert [way["slowdown"] for way in ways] == ["double", "several", "third", "third"]
    assert [way["as_asked"] for way in ways] == [True, True, False, False]
    assert ways[1]["disk_bytes"] > 140 * 2**30
    assert ways[-1]["gpus"] == 16
    assert found["choice"]["peak_bytes"] == ways[0]["peak_bytes"]
    assert found["nearest"] is None


def test_the_job_of_a_way_is_written_and_is_estimated_as_it(
    estimate: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job file, with all else that it says."""
    monkeypatch.chdir(model.parent)
    (model / "config.json").write_text(json.dumps(config("llama", **WIDE)))
    Path("job.toml").write_text(JOB.replace("steps = 1", "steps = 7"))
    cards = ("--gpus", "2", "--gpu-memory", "24GiB", "--host-memory", "32GiB")
    assert estimate("job.toml", *cards).status == 7
    ways = json.loads(estimate("job.toml", *cards, "--json").out)["ways"]
    for number, way in enumerate(ways, 1):
        if "more_gpus" in way["changes"]:
            continue
        file = f"{number}.toml"
        assert estimate("job.toml", *cards, "--write", file, "--way", str(number)).status == 7
        tree = tomllib.loads(Path(file).read_text())
        assert tree["train"]["steps"] == 7
        again = json.loads(estimate(file, *cards, "--json").out)
        assert again["asked"]["fits"]
        assert again["asked"]["peak_bytes"] == way["peak_bytes"]
        assert again["asked"]["host_bytes"] == way["host_bytes"]
    assert len(ways) >= 3
    assert "exists already" in estimate("job.toml", *cards, "--write", "1.toml").err
    both = ("--way", "1", "--write", "both.toml", "--print", "job")
    assert "wrote both.toml" in estimate("job.toml", *cards, *both).err
    assert Path("both.toml").read_text() == Path("1.toml").read_text()


def test_a_config_that_is_refused_leaves_no_job_file(
    estimate: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    text = JOB.replace("gpus = 2", "gpus = 8")
    Path("job.toml").write_text(f"{text}[zero]\ntensor_ranks = 2\n")
    refused = estimate("job.toml", *MACHINE[2:], "--write", "own.toml", "--print", "deepspeed")
    assert "use --print job" in " ".join(refused.err.split())
    assert not Path("own.toml").exists()


def test_the_next_command_is_one_for_a_shell(
    estimate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"a job of {'w' * 60}.toml"
    done = estimate("7B", *MACHINE, "--write", name)
    assert f"next: zerotools submit '{name}' --dry-run\n" in done.err


def test_what_a_config_cannot_say_is_said_beside_it(estimate: Command) -> None:
    done = estimate("13B", *CARDS, "--print", "deepspeed")
    assert json.loads(done.out)["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    said = "activation checkpointing and an 8-bit optimizer: the config has no key for it"
    assert said in " ".join(done.err.split())
    assert estimate("7B", *MACHINE, "--print", "deepspeed").err == ""
    assert estimate("13B", *CARDS, "--print", "job").err == ""


@pytest.mark.parametrize("way", [1, 3], ids=["all weights", "adapters"])
def test_a_size_makes_a_job_that_is_accepted_as_it_is_written(
    estimate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: int
) -> None:
    """It says what is to be set, and its estimate is that of the size, but for less than a row."""
    monkeypatch.chdir(tmp_path)
    done = estimate("13B", *CARDS[:-2], "--write", "job.toml", "--way", str(way))
    assert done.status == 0
    assert done.out.split("\n\n")[0].splitlines()[-1].startswith("sequences of 2,048 tokens are")
    assert "data.text (now data/*.txt)" in done.err
    assert ("model.path (now model)" in done.err) == (way == 3)
    assert ("starts from random weights" in done.err) == (way == 1)
    spec = parse_job(Path("job.toml").read_text(), source="job.toml", base_dir=tmp_path)
    assert spec.data.sequence_length == 2048
    if way == 1:
        again = json.loads(estimate("job.toml", *CARDS[:-2], "--json").out)
        assert again["asked"]["fits"]
        peak = json.loads(estimate("13B", *CARDS, "--json").out)["ways"][0]["peak_bytes"]
        assert again["asked"]["peak_bytes"] == pytest.approx(peak, rel=1e-3)


def test_a_checkpoint_is_exported_before_a_job_starts_from_it(
    estimate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = DEEPSPEED / "z3-bf16-w2" / "checkpoint"
    done = estimate(str(checkpoint), *MACHINE, "--write", "job.toml")
    assert done.status == 0, done.err
    assert tomllib.loads(Path("job.toml").read_text())["model"] == {"path": "model"}
    said = "".join(done.err.split())
    assert "".join(f"zerotools consolidate {checkpoint} model exports its".split()) in said


def test_a_config_of_another_launcher_leaves_no_placeholder(
    estimate: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    Path("ds.json").write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": zero}))
    given = ("--deepspeed", "ds.json", "--batch", "2", "--write", "job.toml")
    done = estimate("model", *MACHINE, *given)
    assert done.status == 0, done.err
    assert "sequences of 64 tokens are assumed" in done.out
    tree = tomllib.loads(Path("job.toml").read_text())
    assert tree["data"]["text"] == ["data/*.txt"]
    assert tree["train"]["epochs"] == 1.0
    assert "steps" not in tree["train"]


WIDE = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
}


def answers_of(
    estimate: Command, shape: dict[str, Any], machine: tuple[str, ...], length: int, optimizer: str
) -> list[list[tuple[object, ...]]]:
    """The ways without adapters, of a directory, its config, and a job file with either."""
    Path("model").mkdir(exist_ok=True)
    Path("model/config.json").write_text(json.dumps(shape))
    job = JOB.replace("gpus = 2", "gpus = 4").replace("= 64", f"= {length}").replace("= 8", "= 4")
    job += f'optimizer = "{optimizer}"\n'
    Path("job.toml").write_text(job)
    Path("config.toml").write_text(job.replace('path = "model"', 'config = "model/config.json"'))

    def answer(name: str, *options: str) -> list[tuple[object, ...]]:
        found = json.loads(estimate(name, *machine, *options, "--json").out)
        assert found["choice"] is not None
        ways = [way for way in found["ways"] if "lora" not in way["changes"]]
        same = ("changes", "stage", "offload", "peak_bytes", "host_bytes", "disk_bytes")
        return [tuple(map(str, (way[key] for key in same))) for way in ways]

    given = ("--sequence-length", str(length), "--optimizer", optimizer)
    answers = [answer(name, *given) for name in ("model", "model/config.json")]
    return answers + [answer(name) for name in ("job.toml", "config.toml")]


@pytest.mark.parametrize(
    ("family", "optimizer"), [*zip(sorted(FAMILIES), cycle(OPTIMIZERS), strict=False)]
)
def test_of_every_family_a_config_a_directory_and_a_job_have_one_answer(
    family: str,
    optimizer: str,
    estimate: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = ("--gpus", "4", "--gpu-memory", "1420MiB", "--host-memory", "16GiB")
    directory, *others = answers_of(estimate, config(family), machine, 64, optimizer)
    assert directory
    assert others == [directory] * 3


def test_a_size_a_config_a_directory_and_a_job_have_one_answer(
    estimate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = ("--gpus", "4x24", "--ram", "64")
    length = ("--sequence-length", "2048")
    answers = answers_of(estimate, config("llama", **WIDE), machine, 2048, "adamw")
    assert answers[0]
    assert answers[0] == answers[1]
    assert answers[2] == answers[3]
    assert answers[0][: len(answers[2])] == answers[2]
    near = json.loads(estimate("6738M", *machine, *length, "--json").out)["ways"][0]
    assert str(near["changes"]) == answers[0][0][0]


def test_nodes_share_weights_within_and_gradients_between(
    estimate: Command, model: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    meeting = '[rendezvous]\naddress = "10.0.0.1:29500"\nnodes = 4\n'
    text = (
        f'gpus = 2\noutput_dir = "/shared"\n{meeting}[model]\nconfig = "{model}"\n'
        '[data]\ntext = ["/data/a.txt"]\nsequence_length = 64\n'
        "[train]\nsteps = 1\nbatch_size = 16\n[zero]\nstage = 3\n"
    )
    job.write_text(text)
    spread = estimate(str(job), *MACHINE[2:], "--stage", "3").out
    assert "8 GPUs of" in spread
    assert "2 on each of 4 nodes" in spread
    assert "each node has a copy of the weights, shared by its 2 ranks" in spread
    assert "for one machine" in estimate(str(job), *MACHINE[2:], "--print", "job").err
    job.write_text(text + "shard_size = 8\n")
    assert "shared by its" not in estimate(str(job), *MACHINE[2:], "--stage", "3").out


def test_adapters_are_printed_with_the_layout_that_is_theirs(
    estimate: Command, model: Path, tmp_path: Path
) -> None:
    job, printed = tmp_path / "job.toml", tmp_path / "printed.toml"
    job.write_text(JOB + '[lora]\nrank = 4\ntarget_modules = ["q_proj"]\n')
    printed.write_text(estimate(str(job), *MACHINE[2:], "--print", "job").out)
    assert tomllib.loads(printed.read_text())["lora"] == {"rank": 4, "target_modules": ["q_proj"]}


def test_the_batch_and_the_model_of_a_job_are_printed_as_they_are(
    estimate: Command, model: Path, tmp_path: Path
) -> None:
    """Also in another directory than that of the job, from which paths in it are taken."""
    job = tmp_path / "below" / "job.toml"
    job.parent.mkdir()
    text = JOB.replace('"model"', f'"../{model.name}"').replace("= 8", "= 48\nmicro_batch_size = 4")
    job.write_text(text)
    tree = tomllib.loads(estimate(str(job), *MACHINE[2:], "--print", "job").out)
    assert (tree["train"]["batch_size"], tree["train"]["micro_batch_size"]) == (48, 4)
    assert Path(tree["model"]["path"]).resolve() == model.resolve()


def test_ranks_that_compute_together_are_said_and_printed(
    estimate: Command, model: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    text = JOB.replace("gpus = 2", "gpus = 8")
    job.write_text(text + "[zero]\ntensor_ranks = 2\nsequence_ranks = 2\n")
    page = estimate(str(job), *MACHINE[2:]).out
    assert "divided among 2 ranks, 2 ranks for each layer" in " ".join(page.split())
    printed = tmp_path / "printed.toml"
    printed.write_text(estimate(str(job), *MACHINE[2:], "--print", "job").out)
    tree = tomllib.loads(printed.read_text())
    assert tree["zero"]["tensor_ranks"] == tree["zero"]["sequence_ranks"] == 2
    assert tree["train"]["batch_size"] == 8
    for other in ("deepspeed", "accelerate"):
        done = estimate(str(job), *MACHINE[2:], "--print", other)
        assert done.status == 2
        assert f"--print {other}: 4 ranks of this job compute the same sequences" in done.err


def test_the_verdict_is_chinese_for_who_reads_that_and_the_json_is_not(
    estimate: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("13B", "--gpus", "4x24", "--ram", "128")
    english = estimate(*asked, "--json")
    monkeypatch.setenv("ZEROTOOLS_LANG", "zh")
    assert estimate(*asked, "--json").out == english.out
    verdict, assumed, _, *rest = estimate(*asked).out.splitlines()
    assert verdict.startswith("能：13B 放得下，条件是激活检查点、")
    assert has_wide(assumed)
    ways = rest[: rest.index("")]
    assert max(map(columns_of, rest)) <= 80
    assert all(has_wide(line) for line in ways if line.lstrip()[:2] in ("1.", "2.", "3.", "4."))
    assert estimate("70B", "--gpus", "1x24", "--ram", "32").out.startswith("不能：")
    assert estimate("tiny.json", "--gpus", "8x80").out == "", "an error is no report"
