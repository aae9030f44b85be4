"""What torch saves and zerotools does not move is refused by its name: never left out, and never
read with another sign."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.formats.torchfile.saving import Saved
from zerotools import formats
from zerotools.core.checkpoint import Key, Opaque
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.torchzip.pickle_values import Global

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


class Sub(torch.Tensor):  # type: ignore[misc, name-defined]
    pass


class Odd(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2))


def numpy_array(kind: str) -> Any:
    import numpy as np

    return np.arange(3, dtype=kind)


def complex_tensor() -> Any:
    return torch.tensor([1 + 2j, 3 - 4j])


UNREAD: dict[str, tuple[Callable[[], Any], str]] = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "a sparse tensor"),
    "csr": (lambda: torch.eye(3).to_sparse_csr(), "a sparse tensor"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
        "NestedTensor",
    ),
    "meta": (lambda: torch.empty(3, device="meta"), "on the meta device"),
    "numpy": (lambda: numpy_array("<f4"), "a numpy array"),
    "big-endian numpy": (lambda: numpy_array(">f4"), "a numpy array"),
    "in a list": (lambda: [numpy_array("<f4")], r"odd.0 is a numpy array"),
    "conjugate": (lambda: complex_tensor().conj(), "conjugate bit"),
    "negative": (lambda: complex_tensor().conj().imag, "negative bit"),
    "negative parameter": (
        lambda: torch.nn.Parameter(complex_tensor().conj().imag),
        "negative bit",
    ),
    "subclass": (lambda: torch.ones(2).as_subclass(Sub), "Sub, a kind of tensor"),
    "module": (Odd, "a pickled module, .*Odd"),
    "modules": (lambda: {"net": Odd()}, "odd.net is a pickled module"),
    "lazy": (torch.nn.UninitializedParameter, "a lazy parameter"),
    "storage": (lambda: torch.FloatStorage([1.0]), "a storage without a tensor"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrap", [False, True], ids=["bare", "below model"])
@pytest.mark.parametrize("kind", UNREAD)
def test_it_is_named_and_refused(tmp_path: Path, kind: str, wrap: bool) -> None:
    make, said = UNREAD[kind]
    tree = {"w": torch.ones(2), "odd": make()}
    torch.save({"model": tree} if wrap else tree, tmp_path / "a.pt")
    with pytest.raises(Unsupported, match=said) as caught:
        formats.read(tmp_path / "a.pt")
    assert f"{tmp_path}/a.pt: odd" in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_tensor_is_refused(tmp_path: Path) -> None:
    made = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    torch.save({"w": torch.ones(2), "odd": made}, tmp_path / "a.pt")
    with pytest.raises(Unsupported, match="QInt8Storage"):
        formats.read(tmp_path / "a.pt")


READ: dict[str, Callable[[], Any]] = {
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "buffer": lambda: torch.nn.Buffer(torch.ones(2)),
    "resolved": lambda: complex_tensor().conj().imag.resolve_neg(),
    "expanded": lambda: torch.ones(1).expand(2),
}


@pytest.mark.parametrize("kind", READ)
def test_what_is_a_plain_tensor_is_read(tmp_path: Path, kind: str) -> None:
    torch.save({"w": torch.ones(3), "odd": READ[kind]()}, tmp_path / "a.pt")
    assert Key("odd", "param") in formats.read(tmp_path / "a.pt").tensors


def test_what_lies_beside_the_weights_hinders_nobody(tmp_path: Path) -> None:
    tree = {"model": {"w": torch.ones(2)}, "rng": numpy_array("<u4"), "x": torch.eye(2).to_sparse()}
    torch.save(tree, tmp_path / "a.pt")
    assert set(formats.read(tmp_path / "a.pt").tensors) == {Key("w", "param")}


def test_numpy_s_random_state_beside_torch_s_hinders_nobody(tmp_path: Path) -> None:
    state = ("MT19937", numpy_array("<u4"), 624, 0, 0.0)
    tree = {"model": {"w": torch.ones(2)}, "torch": torch.get_rng_state(), "numpy": state}
    torch.save(tree, tmp_path / "a.pt")
    assert set(formats.read(tmp_path / "a.pt").tensors) == {
        Key("w", "param"),
        Key("torch", "state"),
    }


def test_an_optimizer_with_a_sparse_moment(tmp_path: Path) -> None:
    state = {"state": {0: {"m": torch.eye(2).to_sparse()}}, "param_groups": [{"params": [0]}]}
    torch.save({"model": {"w": torch.ones(2)}, "optimizer": state}, tmp_path / "a.pt")
    with pytest.raises(Unsupported, match=r"optimizer\.0\.m is a sparse tensor"):
        formats.read(tmp_path / "a.pt")


def test_parameters_within_parameters_end(tmp_path: Path) -> None:
    file = Saved()
    odd: Any = file.tensor([1.0])
    for _ in range(5000):
        odd = Opaque("torch._utils", "_rebuild_parameter", (odd, True, {}), called=True)
    path = file.write(tmp_path / "a.pt", {"w": file.tensor([1.0]), "odd": odd})
    with pytest.raises(Unsupported, match="odd is a parameter within parameters"):
        formats.read(path)


def pt_keys() -> dict[str, tuple[Any, str]]:
    import numpy as np

    generator = torch.get_rng_state()
    made = {"python": (3, (1, 2), None), "numpy": np.random.default_rng(1).bytes(3)}
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    scaler = {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5}
    arguments = Global("transformers.training_args", "TrainingArguments")
    return {
        "rng_state_0.pth": ({**made, "cpu": generator, "cuda": [generator]}, "random number"),
        "random_states_0.pt": (
            {"random_state": (3,), "numpy_random_seed": (4,), "torch_manual_seed": generator},
            "random number",
        ),
        "scheduler.pt": (scheduler.state_dict(), "learning-rate scheduler"),
        "scaler.pt": (scaler, "loss scaler"),
        "rng.pt": (generator, "a single tensor without a name"),
        "step.pt": ({"step": torch.tensor(4), "loss": torch.tensor(0.5)}, "step: int64 of shape"),
        "ids.pt": ({"input_ids": torch.ones(4, dtype=torch.long)}, "input_ids: int64"),
        "training_args.bin": (Opaque(arguments.module, arguments.name), "pickled transformers"),
    }


@pytest.mark.parametrize("name", sorted(pt_keys()))
def test_a_file_of_state_is_refused_by_what_it_is(tmp_path: Path, name: str) -> None:
    tree, said = pt_keys()[name]
    if isinstance(tree, Opaque):
        Saved().write(tmp_path / name, tree)
    else:
        torch.save(tree, tmp_path / name)
    with pytest.raises((BadFile, Unsupported), match=said) as caught:
        formats.read(tmp_path / name)
    assert "name the file or directory of the model" in str(caught.value)


def test_an_optimizer_alone_is_no_model_to_export(tmp_path: Path) -> None:
    from zerotools.core.errors import BadRequest
    from zerotools.ops.conversions.consolidate import Options, prepare_export

    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    with pytest.raises(BadRequest, match=r"it holds only exp_avg, exp_avg_sq, step"):
        prepare_export(tmp_path / "optimizer.pt", tmp_path / "out", Options())
