"""A GPU that is simulated: its tensors are in host memory, and code takes the ways of `cuda`.

Inside `simulated_gpu`, a tensor on `cuda` is a `GpuTensor`, which holds a tensor of the CPU. An
operation computes on what it holds, so the values are those of the CPU bit for bit. These are as on
a GPU:

    devices    an operation on tensors of both devices is refused, and `.to` copies between them
    waits      what lets the host wait for the GPU is counted
    copies     a copy that does not block is late: it happens when something waits for it. The host
               finds the old bytes until then. On another stream than the current one, a copy also
               reads its source as late as that

Kernels, NCCL, the driver and the allocator are not simulated. Attention must be "eager" where
values are compared: the CPU has a kernel for scaled_dot_product_attention that differs in rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
BYTES = 1 << 37
aten = torch.ops.aten
COPY, TO_COPY = aten.copy_.default, aten._to_copy.default
INDEXED = {
    *(aten.index.Tensor, aten.index_put.default),
    *(aten.index_put_.default, aten._index_put_impl_.default),
}
"""Operations that take indices of the host, which they copy."""
COUNTING = ("nonzero", "masked_select", "unique", "repeat_interleave.Tensor", "aten.equal")
"""Parts of the names of operations with results of a size that the host has to know."""


class GpuTensor(torch.Tensor):  # type: ignore[misc] # torch's types are not followed
    """A tensor on the simulated GPU.

    To the C++ code of torch, which has no GPU, it is a tensor on `meta`.
    """

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> GpuTensor:
        made: GpuTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device="meta",
        )
        made.held = held
        return made

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self, **_: Any) -> str:
        return f"GpuTensor({self.held!r})"

    def record_stream(self, stream: Any) -> None:
        """Do nothing: no allocator gives memory to others."""

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _Driver.now.computed(function, args, kwargs or {})


@dataclass
class _LateCopy:
    """A copy that has been asked for and has not happened yet."""

    target: torch.Tensor
    source: torch.Tensor
    to_host: bool
    is_read: bool = False

    def read(self) -> None:
        """Read the source: nothing that is computed later changes it."""
        if not self.is_read:
            self.source, self.is_read = self.source.clone(), True

    def write(self) -> None:
        """Complete the copy."""
        COPY(self.target, self.source)


class Stream:
    """A stream with copies that have not happened yet."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.late: list[_LateCopy] = []

    def in_order(self) -> None:
        """Do what the GPU has done before its next operation in this stream.

        The host may still find the old bytes in its memory.
        """
        for copy in self.late:
            copy.read() if copy.to_host else copy.write()
        self.late = [copy for copy in self.late if copy.to_host]

    def synchronize(self) -> None:
        """Let the host wait for all copies."""
        self.in_order()
        while self.late:
            self.late.pop(0).write()

    def wait_stream(self, other: Stream) -> None:
        """Let this stream wait for another one. The host does not wait."""
        if other is not self:
            other.in_order()
            self.late += other.late  # the same objects: a wait for either stream completes them

    def wait_event(self, event: Event) -> None:
        """Let this stream wait for an event."""
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event after the copies so far."""
        return (event or Event()).record(self)


class Event:
    """A place in a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._stream: Stream | None = None

    def record(self, stream: Stream | None = None) -> Event:
        """Place the event in a stream."""
        self._stream = stream or _Driver.now.streams[-1]
        return self

    def synchronize(self) -> None:
        """Let the host wait for the copies before the event."""
        if self._stream is not None:
            self._stream.synchronize()

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for the event."""
        if self._stream is not None:
            (stream or _Driver.now.streams[-1]).wait_stream(self._stream)


def _is_gpu(device: Any) -> bool:
    return isinstance(device, torch.device | str) and torch.device(device).type == "cuda"


def _is_meta(device: Any) -> bool:
    return isinstance(device, torch.device | str) and torch.device(device).type == "meta"


def _held(value: Any) -> Any:
    return value.held if isinstance(value, GpuTensor) else value


def _on_gpu(value: Any) -> Any:
    return GpuTensor(value) if isinstance(value, torch.Tensor) else value


class _Driver:
    """The state of the GPU, and its operations. `waits` counts what has let the host wait."""

    now: _Driver

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.streams = [Stream()]
        self.calls = [False]
        self._pinned: dict[int, int] = {}
        self._kept: list[torch.Tensor] = []

    def computed(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Compute an operation on the device of its tensors.

        Raises:
            RuntimeError: the tensors are on both devices.
        """
        leaves = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        ours = any(isinstance(each, GpuTensor) for each in leaves)
        device = kwargs.get("device")
        if _is_meta(device) and (ours or self._is_inside_call()):
            # What C++ code makes next to a tensor of ours, which it takes for one on `meta`.
            device = GPU
        if not ours and not _is_gpu(device):
            return function(*args, **kwargs)
        self._check_devices(function, args, leaves, ours=ours)
        if function is COPY:
            return self._copied(*args, **kwargs)
        if function is TO_COPY and not ours:
            self.streams[-1].synchronize()  # whose copies to the host come before this one
        self.streams[-1].in_order()
        to_host = function is TO_COPY and device is not None and not _is_gpu(device)
        if function is TO_COPY:
            is_late = kwargs.get("non_blocking", False)
            kwargs = {key: each for key, each in kwargs.items() if key != "non_blocking"}
            if ours and to_host and is_late:
                return self._late_on_host(function(_held(args[0]), **kwargs))
        self._count(function, args, to_host=to_host)
        if device is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        inner, options = tree_map(_held, (args, kwargs))
        options.pop("pin_memory", None)
        if function is aten.histc.default:  # which the CPU has for floats alone
            found = function(inner[0].float(), *inner[1:], **options).to(inner[0].dtype)
        else:
            found = function(*inner, **options)
        if device is not None and not _is_gpu(device):
            return found
        return return_and_correct_aliasing(function, args, kwargs, tree_map(_on_gpu, found))

    def _is_inside_call(self) -> bool:
        return self.calls[-1] or torch._C._current_autograd_node() is not None

    def _check_devices(
        self, function: Any, args: Any, leaves: list[torch.Tensor], *, ours: bool
    ) -> None:
        others = [each for each in leaves if not isinstance(each, GpuTensor)]
        host = [tuple(each.shape) for each in others if each.device.type == "cpu" and each.dim()]
        takes_both = function in (COPY, TO_COPY) or (
            function in INDEXED and isinstance(args[0], GpuTensor)
        )
        if ours and host and not takes_both:
            raise RuntimeError(f"{function}: tensors on {GPU}, and on the host of shapes {host}")
        if ours and any(each.device.type == "meta" for each in others):
            raise RuntimeError(f"{function}: tensors on {GPU}, and on meta")

    def _count(self, function: Any, args: Any, *, to_host: bool) -> None:
        name = str(function)
        indices = args[1] if function in INDEXED else ()
        masks = any(
            each is not None and (each.dtype == torch.bool or not isinstance(each, GpuTensor))
            for each in indices
        )
        counts = any(each in name for each in COUNTING)
        if function is aten._local_scalar_dense.default or to_host or masks or counts:
            self.read(name)

    def _copied(self, target: torch.Tensor, source: torch.Tensor, late: bool = False) -> Any:
        """Copy `source` to `target`, now or later."""
        to, own = _held(target), _held(source)
        across = isinstance(target, GpuTensor) is not isinstance(source, GpuTensor)
        host = own if isinstance(target, GpuTensor) else to
        to_host = not isinstance(target, GpuTensor)
        stream = self.streams[-1]
        if late and across and self.is_pinned(host):
            stream.late.append(_LateCopy(to, own, to_host))
            if stream is self.streams[0]:
                stream.in_order()  # that in which all else is computed
            return target
        stream.in_order()
        if across:
            stream.synchronize()
            self.waits[str(COPY)] += to_host
        COPY(to, own)
        return target

    def _late_on_host(self, value: torch.Tensor) -> torch.Tensor:
        """Return memory of the host that gets `value` when the stream is waited for."""
        made = torch.full_like(value, torch.nan if value.is_floating_point() else 0)
        self.streams[-1].late.append(_LateCopy(made, value, to_host=True))
        self.streams[-1].in_order()
        return self._pin(made)

    def read(self, name: str) -> None:
        """Let the host wait for a value, and count that."""
        self.waits[name] += 1
        self.streams[-1].synchronize()

    def is_pinned(self, tensor: Any) -> bool:
        """Return whether a tensor is in pinned memory of the host."""
        if isinstance(tensor, GpuTensor):
            return False
        address = tensor.untyped_storage().data_ptr()
        return any(begin <= address < begin + size for begin, size in self._pinned.items())

    def register(self, address: int, size: int, flags: int = 0) -> int:
        """Pin memory, as cudaHostRegister does."""
        self._pinned[address] = size
        return 0

    def unregister(self, address: int) -> int:
        """Pin memory no longer, as cudaHostUnregister does."""
        del self._pinned[address]
        return 0

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        self._kept.append(tensor)  # so that no other tensor gets its address
        self.register(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        return tensor

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor in pinned memory."""
        return tensor if self.is_pinned(tensor) else self._pin(tensor.clone())

    @contextmanager
    def in_stream(self, stream: Stream | None) -> Iterator[None]:
        """Make a stream the current one; None: nothing changes."""
        self.streams.append(stream or self.streams[-1])
        try:
            yield
        finally:
            self.streams.pop()


class _Operations(TorchDispatchMode):  # type: ignore[misc] # torch's types are not followed
    """Makes tensors on the GPU."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _Driver.now.computed(function, args, kwargs or {})


class _Methods(TorchFunctionMode):  # type: ignore[misc] # torch's types are not followed
    """Answers for methods whose C++ code would ask a tensor on `meta`, or the driver."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, driver = dict(kwargs or {}), _Driver.now
        if function is torch.Tensor.backward:
            kwargs["grad_tensors"] = kwargs.pop("gradient", None)
            with self:  # for the hooks that run in it
                return torch.autograd.backward(*args, **kwargs)
        if function is torch.Tensor.is_pinned:
            return driver.is_pinned(args[0])
        if function is torch.Tensor.pin_memory:
            return driver.pinned(args[0])
        if function is torch.Tensor.tolist and isinstance(args[0], GpuTensor):
            driver.read("tolist")
            return args[0].held.tolist()
        if function is torch.Tensor.to and isinstance(args[0], GpuTensor):
            args, is_same = _without_gpu(args, kwargs)
            if is_same:
                return args[0]
        elif function is torch.Tensor.to:  # C++ code would ask the driver for the index
            args = tuple(GPU if _is_gpu(each) else each for each in args)
        if _is_gpu(kwargs.get("device")):
            kwargs["device"] = GPU
        driver.calls.append(any(isinstance(e, GpuTensor) for e in tree_leaves((args, kwargs))))
        try:
            return function(*args, **kwargs)
        finally:
            driver.calls.pop()


def _without_gpu(args: Any, kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """Return the arguments of `Tensor.to` without the device that the tensor is on, and whether
    nothing is left to do."""
    more = [each for each in args[1:] if not _is_gpu(each) and each is not None]
    if _is_gpu(kwargs.get("device")):
        del kwargs["device"]
    asks = any(isinstance(each, torch.dtype | torch.device | torch.Tensor | str) for each in more)
    asks = asks or any(kwargs.get(key) is not None for key in ("dtype", "device", "other"))
    return (args[0], *more), not asks and not kwargs.get("copy")


def _library(driver: _Driver) -> dict[str, Any]:
    """Return what stands for the functions of `torch.cuda`."""
    of_card = SimpleNamespace(major=9, minor=0, name="simulated", total_memory=BYTES)
    runtime = SimpleNamespace(
        cudaHostRegister=driver.register, cudaHostUnregister=driver.unregister
    )
    state = torch.zeros(16, dtype=torch.uint8)
    return {
        "Event": Event,
        "Stream": Stream,
        "_lazy_init": lambda: None,
        "cudart": lambda: runtime,
        "current_device": lambda: 0,
        "current_stream": lambda *_: driver.streams[-1],
        "device_count": lambda: 1,
        "get_device_name": lambda *_: of_card.name,
        "get_device_properties": lambda *_: of_card,
        "get_rng_state": lambda *_: state,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "max_memory_reserved": lambda *_: 0,
        "mem_get_info": lambda *_: (BYTES, BYTES),
        "set_device": lambda *_: None,
        "set_rng_state": lambda *_: None,
        "stream": driver.in_stream,
        "synchronize": lambda *_: driver.streams[0].synchronize(),
    }


@contextmanager
def simulated_gpu() -> Iterator[Counter[str]]:
    """Simulate a GPU in this process. Yields the counts of what has let the host wait for it."""
    _Driver.now = driver = _Driver()
    ours = _library(driver)
    before = {name: getattr(torch.cuda, name) for name in ours}
    mine = ("device", "is_cuda", "is_meta")
    for name, value in ours.items():
        setattr(torch.cuda, name, value)
    for name in mine:  # of the tensor that it holds; C++ code would say `meta`
        setattr(DTensor, name, property(lambda self, name=name: getattr(self._local_tensor, name)))
    try:
        with _Methods(), _Operations():
            yield driver.waits
    finally:
        for name in mine:
            delattr(DTensor, name)
        for name, value in before.items():
            setattr(torch.cuda, name, value)
