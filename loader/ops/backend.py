"""Who launches: the door between the operations and the kernels.

The operations ask a :class:`Backend` for kernels by name and for what they must know of
the device. The one in use is the default bundle's; :func:`use_backend` puts another in,
such as one that interprets the same kernels on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol

import torch

from aot.loader import discovery, native, torch_adapter
from aot.loader.driver import get_driver
from aot.loader.kernel import Kernel
from aot.loader.ops.splits import SplitPolicy
from aot.loader.ops.workspace import Capture
from aot.loader.prepared import HeldCall

Grid = Callable[[Mapping[str, Any]], tuple[int, ...]]


class Launch(Protocol):
    """A kernel with its grid: called with the kernel's arguments, constexprs by name."""

    def __call__(self, *args: Any, **constexprs: Any) -> Any: ...


class KernelHandle(Protocol):
    """A kernel; ``kernel[grid](…)`` launches it, the grid being a function of its constexprs."""

    def __getitem__(self, grid: Grid) -> Launch: ...


class Backend(Protocol):
    """What the operations need. ``device_type`` is the type of torch device it serves."""

    @property
    def device_type(self) -> str: ...

    def kernel(self, name: str) -> KernelHandle:
        """The kernel of that name."""
        ...

    def policy(self, device: torch.device) -> SplitPolicy:
        """How reductions are split on ``device``."""
        ...

    def stream(self, device: torch.device) -> Hashable | None:
        """What launches on ``device`` are ordered by now, a ``Capture`` while a graph is captured."""
        ...


class CudaBackend:
    """The default bundle, on torch's current stream."""

    device_type = "cuda"

    def kernel(self, name: str) -> KernelHandle:
        return discovery.default_bundle().kernel(name)

    def hold(self, name: str, grid: Grid, args: tuple[Any, ...], constexprs: dict[str, str]) -> HeldCall:
        """The call of kernel ``name`` of the first default bundle that serves it."""

        def hold(kernel: Kernel) -> HeldCall:
            return kernel.hold(grid, args, dict(constexprs))

        return discovery.serve(name, hold)

    def policy(self, device: torch.device) -> SplitPolicy:
        return _policy(device.index)

    def stream(self, device: torch.device) -> Hashable | None:
        driver = get_driver()
        stream = torch_adapter.current_stream(device.index)
        with driver.current(driver.device(device.index)):
            return Capture(stream, driver.capture_id(stream)) if driver.is_capturing(stream) else stream


@lru_cache(maxsize=64)
def _policy(index: int) -> SplitPolicy:
    return SplitPolicy(processors=torch.cuda.get_device_properties(index).multi_processor_count)


_current: Backend = CudaBackend()


def current() -> Backend:
    """The backend in use."""
    return _current


@contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Launch through ``backend`` inside the block, in every thread."""
    global _current
    before = _current
    _current = backend
    native.invalidate()
    try:
        yield
    finally:
        _current = before
        native.invalidate()
