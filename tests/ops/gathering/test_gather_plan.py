from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden_files import every_checkpoint
from tests.io.ssh.double import SshDouble
from tests.ops.gathering.nodes import gathered, made_node, planned
from zerotools.core.errors import BadFile, BadRequest
from zerotools.ops.gathering.gather_plan import GatherPlan, why_no_checkpoint
from zerotools.ops.gathering.node_survey import LARGEST_TEXT, may_name_one


def names(plan: GatherPlan) -> dict[str, list[str]]:
    return {source: [each.name for each in some] for source, some in plan.fetches.items()}


def test_copies_are_fetched_once_and_divided_by_bytes(ssh: SshDouble, tmp_path: Path) -> None:
    common = {"big": b"x" * 900, "small": b"y" * 100, "smaller": b"z" * 50}
    one = made_node(tmp_path, "n1", {**common, "own1": b"1" * 300})
    two = made_node(tmp_path, "n2", {**common, "own2": b"2" * 100})
    plan = planned([one, two], tmp_path / "out")
    assert names(plan) == {one: ["own1", "small", "smaller"], two: ["big", "own2"]}
    assert plan.copies == ["big", "small", "smaller"]
    assert (plan.bytes_of_all, plan.bytes_to_fetch) == (1450, 1450)
    assert set(plan.digests) == set(common)


def test_what_this_node_has_comes_from_here(ssh: SshDouble, tmp_path: Path) -> None:
    one = made_node(tmp_path, "n1", {"a": b"a" * 99, "b": b"b"})
    here = made_node(tmp_path, "n2", {"a": b"a" * 99, "c": b"c"}).partition(":")[2]
    plan = planned([one, here], tmp_path / "out")
    assert names(plan) == {one: ["b"], here: ["a", "c"]}


def test_a_file_that_differs_is_refused_with_both_nodes(ssh: SshDouble, tmp_path: Path) -> None:
    one = made_node(tmp_path, "n1", {"s/mp_rank_00_model_states.pt": b"first" * 100})
    two = made_node(tmp_path, "n2", {"s/mp_rank_00_model_states.pt": b"other" * 100})
    with pytest.raises(BadFile) as refused:
        planned([one, two], tmp_path / "out")
    said = str(refused.value)
    assert said.startswith("s/mp_rank_00_model_states.pt has SHA-256 ")
    assert f"... in {one} and " in said
    assert f"... in {two}: they are from two saves; move the one" in said
    three = made_node(tmp_path, "n3", {"s/mp_rank_00_model_states.pt": b"other"})
    with pytest.raises(BadFile) as refused:
        planned([one, three], tmp_path / "out")
    assert f"has 500 bytes in {one} and 5 in {three}: they are from two" in str(refused.value)
    assert not (tmp_path / "out.partial").exists()


def test_a_run_of_several_models_is_not_doubted(ssh: SshDouble, tmp_path: Path) -> None:
    tag, latest = "_actor/global_step4", {"_actor/latest": b"global_step4"}
    one = {
        f"{tag}/mp_rank_00_model_states.pt": b"a",
        f"{tag}/zero_pp_rank_0_mp_rank_00_optim_states.pt": b"b",
    }
    two = {f"{tag}/zero_pp_rank_1_mp_rank_00_optim_states.pt": b"c"}
    nodes = [made_node(tmp_path, "n1", one | latest), made_node(tmp_path, "n2", two | latest)]
    assert planned(nodes, tmp_path / "out").doubt is None


@pytest.mark.parametrize("other", ["global_step3", "global_step10"])
def test_a_pointer_that_differs_says_both_values(
    ssh: SshDouble, tmp_path: Path, other: str
) -> None:
    one = made_node(tmp_path, "n1", {"latest": b"global_step2\n"})
    two = made_node(tmp_path, "n2", {"latest": other.encode()})
    with pytest.raises(BadFile) as refused:
        planned([one, two], tmp_path / "out")
    assert str(refused.value).startswith(
        f"latest has 'global_step2' in {one}, but '{other}' in {two}: they are from two saves;"
    )


def test_a_tag_takes_what_belongs_to_it(ssh: SshDouble, tmp_path: Path) -> None:
    files = {"global_step2/a": b"2", "global_step3/a": b"3", "config.json": b"{}", "old/x": b"x"}
    one = made_node(tmp_path, "n1", {**files, "latest": b"global_step3"})
    two = made_node(tmp_path, "n2", {"global_step2/b": b"2", "latest": b"global_step2"})
    out = tmp_path / "out"
    plan = planned([one, two], out, "global_step2")
    assert set(plan.survey.files) == {"global_step2/a", "global_step2/b", "config.json", "latest"}
    assert names(plan)[two] == ["global_step2/b", "latest"]
    alone = planned([one], out, "global_step2")  # its pointer names what is not taken along
    assert set(alone.survey.files) == {"global_step2/a", "config.json"}
    with pytest.raises(
        BadRequest, match=r"no source has the tag 'x'; .*: global_step2, global_step3"
    ):
        planned([one, two], out, "x")


def test_a_file_and_a_directory_of_one_name(ssh: SshDouble, tmp_path: Path) -> None:
    one = made_node(tmp_path, "n1", {"a/b/c": b""})
    two = made_node(tmp_path, "n2", {"a": b"x"})
    with pytest.raises(BadFile, match=f"^a is a file in {two} and a directory in {one}; move"):
        planned([one, two], tmp_path / "out")


def test_requests_that_cannot_be(ssh: SshDouble, tmp_path: Path) -> None:
    one = made_node(tmp_path, "n1", {"a": b"x"})
    here = Path(one.partition(":")[2])
    out = tmp_path / "out"
    for sources, where, why in (
        ([one, one], out, "was given twice"),
        ([str(here)], here / "out", "is inside the source"),
        ([str(here)], here.parent, "exists; choose another output"),
        ([str(here / ".." / "run")], here, "exists; choose another output"),
    ):
        with pytest.raises(BadRequest, match=why):
            planned(sources, where)
    empty = made_node(tmp_path, "n4", {})
    (tmp_path / "n4" / "run").mkdir(parents=True)
    with pytest.raises(BadRequest, match="there are no files in"):
        planned([empty], out)


def test_what_others_left_is_not_gone_on_with(ssh: SshDouble, tmp_path: Path) -> None:
    one = made_node(tmp_path, "n1", {"t/a": b"x", "u/a": b"y"})
    out = tmp_path / "out"
    partial = tmp_path / "out.partial"
    partial.mkdir()
    (partial / "mine").touch()
    with pytest.raises(
        BadRequest, match="holds files that zerotools gather did not write; check them"
    ):
        planned([one], out)
    (partial / "mine").unlink()
    assert not gathered([one], out, tag="t").has_name
    with pytest.raises(
        BadRequest, match=r"the run that started .* had other tag; remove .*partial to start"
    ):
        planned([one], out, "u")


def test_several_sources_that_fail_are_one_sentence(ssh: SshDouble, tmp_path: Path) -> None:
    sources = [f"n1:{tmp_path / 'none'}", f"n2:{tmp_path / 'none'}", f"n3:{tmp_path / 'none'}"]
    with pytest.raises(BadRequest) as refused:
        planned(sources, tmp_path / "out")
    said = str(refused.value)
    assert said.startswith(f"{sources[0]} does not exist (2 more sources failed, too: {sources[1]}")
    assert said.endswith("; is the path right?")


def test_without_sha256sum_copies_are_compared_by_what_is_sent(
    ssh: SshDouble, tmp_path: Path
) -> None:
    ssh.has_programs("n2", [Path("/bin") / each for each in ("sh", "find", "head", "dd", "stat")])
    one = made_node(tmp_path, "n1", {"a": b"x" * 300_000, "b": b"b"})
    two = made_node(tmp_path, "n2", {"a": b"x" * 300_000, "b": b"c"})
    with pytest.raises(BadFile, match=r"^b has 'b' in "):
        planned([one, two], tmp_path / "out")
    (tmp_path / "n2" / "run" / "b").unlink()
    plan = planned([one, two], tmp_path / "out")
    assert plan.copies == ["a"]
    assert [each.makes_digests for each in plan.survey.listings] == [True, False]


OUT = Path("/data/out")


DIRECTORIES = [path for path in every_checkpoint() if path.is_dir()]


@pytest.mark.parametrize("path", DIRECTORIES, ids=lambda path: str(path)[-60:])
def test_a_checkpoint_is_not_doubted(path: Path) -> None:
    files = [each for each in path.rglob("*") if each.is_file()]
    names = {each.relative_to(path).as_posix(): each for each in files}
    sizes = {name: each.stat().st_size for name, each in names.items() if may_name_one(name)}
    named = {name: names[name] for name, size in sizes.items() if 0 < size <= LARGEST_TEXT}
    texts = {name: each.read_text(errors="replace") for name, each in named.items()}
    assert why_no_checkpoint(names, texts, OUT) is None


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["__0_0.distcp", "__1_0.distcp"], "/data/out has .distcp files but no .metadata"),
        (["job.json", "dcp/__0_0.distcp"], "/data/out has job.json but no MANIFEST.json"),
        (["notes.txt"], "/data/out is not a checkpoint: it has no"),
    ],
)
def test_what_is_no_checkpoint(names: list[str], why: str) -> None:
    assert (why_no_checkpoint(names, {}, OUT) or "").startswith(why)
