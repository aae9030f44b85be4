"""Copies in a stream of their own: who waits for whom, on a device that is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytestmark = pytest.mark.torch


class Streams:
    """CUDA's streams, which note what is done in which order; the current one is the last."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.current = ["main"]

    def of(self, name: str) -> Stream:
        return Stream(self, name)

    @contextmanager
    def entered(self, stream: Stream) -> Iterator[None]:
        self.current.append(stream.name)
        yield
        self.current.pop()

    def note(self, what: str) -> None:
        self.done.append(what)


class Stream:
    def __init__(self, streams: Streams, name: str) -> None:
        self.streams, self.name = streams, name

    def wait_stream(self, other: Stream) -> None:
        self.streams.note(f"{self.name} waits for {other.name}")

    def record_event(self) -> Stream:
        return self

    def synchronize(self) -> None:
        self.streams.note(f"the host waits for {self.name}")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    import torch

    found = Streams()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: found.of("copies"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: found.of(found.current[-1]))
    monkeypatch.setattr(torch.cuda, "stream", found.entered)
    return found


def tensor(streams: Streams, name: str, value: float) -> Any:
    """A tensor that notes copies into it and streams that use its memory."""
    import torch

    class Noted(torch.Tensor):  # type: ignore[misc]
        __torch_function__ = torch._C._disabled_torch_function_impl

        def copy_(self, source: Any, non_blocking: bool = False) -> Any:
            assert non_blocking, "the host would wait"
            streams.note(f"{streams.current[-1]} writes {name}")
            return super().copy_(source)

        def record_stream(self, stream: Stream) -> None:
            streams.note(f"{name} is kept for {stream.name}")

    return torch.full((2,), value).as_subclass(Noted)


def test_a_copy_waits_for_the_gradient_and_keeps_its_memory(streams: Streams) -> None:
    import torch

    from zerotoolsd.trainer.engine_torch.master_weights import CudaCopyStream

    copies = CudaCopyStream(torch.device("cpu"))
    copies.wait_on_host()  # nothing was copied yet
    gradient, buffer = tensor(streams, "gradient", 3.0), tensor(streams, "buffer", 1.0)
    copies.to_host(gradient, buffer)
    assert buffer.tolist() == [3.0, 3.0]
    norm = copies.add_to_host(gradient, buffer)
    assert buffer.tolist() == [6.0, 6.0]
    assert float(norm) == pytest.approx(72**0.5)
    copies.wait_on_host()
    one = ["copies waits for main", "copies writes buffer", "gradient is kept for copies"]
    assert streams.done == [*one, *one, "the host waits for copies"]


def test_weights_that_return_are_waited_for_by_the_device(streams: Streams) -> None:
    import torch

    from zerotoolsd.trainer.engine_torch.master_weights import CudaCopyStream

    copies = CudaCopyStream(torch.device("cpu"))
    weight = tensor(streams, "weight", 0.0)
    copies.to_device(tensor(streams, "master", 2.0), weight)
    copies.wait_on_device()
    assert streams.done == ["copies writes weight", "main waits for copies"]
    assert weight.tolist() == [2.0, 2.0]


def test_a_gpu_has_a_stream_for_copies(streams: Streams) -> None:
    import torch

    from zerotoolsd.trainer.engine_torch import master_weights

    found = master_weights.make_copy_stream(torch.device("cuda", 1))
    assert isinstance(found, master_weights.CudaCopyStream)
    assert isinstance(
        master_weights.make_copy_stream(torch.device("cpu")), master_weights.DirectCopy
    )
