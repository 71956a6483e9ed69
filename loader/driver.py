"""The one door to the CUDA driver: every call is checked, every error names call, CUDA error and kernel.

The driver library is opened when the first launch asks for it and not before: by the native
launcher where there is one, else by cuda-bindings.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from aot.errors import DriverError, LaunchError
from aot.loader import native, stats
from aot.loader.cudaapi import CudaApi
from aot.target import dotted

# The driver allows this much dynamic shared memory without being asked.
_SHARED_WITHOUT_OPT_IN = 48 * 1024
# Clusters of more blocks than this are allowed only on request.
_PORTABLE_CLUSTER = 8

_HINTS = {
    2: "the GPU's memory is full: free some, or use a device with more",
    3: "if this process was forked after CUDA was used, start it with spawn or forkserver instead",
    100: "no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES",
    500: "the cubin has no such symbol: build the bundle again",
    700: "a kernel that ran before, this one or another, used a wrong address; "
    "the CUDA context is lost, start the process again",
    701: "the kernel needs more registers or shared memory than the device has left for one block",
    719: "a kernel that ran before failed; the CUDA context is lost, start the process again",
    900: "a stream is being captured: preload the kernel, or call it once, before the capture begins",
    906: "a stream is being captured: preload the kernel, or call it once, before the capture begins",
    901: "a stream is being captured: preload the kernel, or call it once, before the capture begins",
}
# The image is not one that this driver or this device can run.
_BAD_IMAGE = (200, 209, 218, 222)

# cuda.h: CUdevice_attribute.
_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _MAX_SHARED_OPT_IN = 75, 76, 97
# cuda.h: CUfunction_attribute.
_FUNCTION_ATTRIBUTES = {
    8: "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
    14: "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
}
_MAX_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = _FUNCTION_ATTRIBUTES


class Device(Struct, frozen=True, kw_only=True):
    """One GPU: ``index`` as CUDA counts them, ``capability`` major * 10 + minor, ``max_shared`` the
    largest dynamic shared memory of a block in bytes, ``context`` the handle of its primary context."""

    index: int
    name: str
    capability: int
    max_shared: int
    context: int

    def __str__(self) -> str:
        return f"cuda:{self.index} ({self.name}, capability {dotted(self.capability)})"


class Image(Struct, frozen=True, kw_only=True):
    """A cubin to load: its ``sha256``, the ``symbol`` of its kernel, ``read`` that returns the verified
    bytes; ``shared`` and ``num_ctas`` as the variant launches it; ``kernel``, ``target`` and ``made_by``
    (the compiler) for messages; ``preload`` is the call that loads it ahead of use."""

    sha256: str
    symbol: str
    read: Callable[[], bytes]
    shared: int
    num_ctas: int
    kernel: str
    target: str
    made_by: str
    preload: str


class Driver:
    """The driver of this process. Get it with :func:`get_driver`; safe to use from several threads.

    A cubin is loaded once and stays loaded for the life of the process: a captured graph or a
    running kernel may use it after its bundle was closed.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._cu = _driver_api()
        self._lock = threading.Lock()
        self._devices: dict[int, Device] = {}
        self._libraries: dict[str, int] = {}
        self._kernels: dict[tuple[str, str], int] = {}
        self._ready: dict[tuple[str, str, int], int] = {}
        self.check(_open(self._cu), "cuInit")
        self.version = self.value(self._cu.driver_version(), "cuDriverGetVersion")

    @property
    def cuda(self) -> str:
        """The newest CUDA that the driver supports, such as ``13.0``."""
        return f"{self.version // 1000}.{self.version % 1000 // 10}"

    def check(self, status: int, call: str, what: str = "", hint: str = "") -> None:
        """Raise ``DriverError`` for a status of ``call`` that is not success."""
        if status == 0:
            return
        hint = hint or _HINTS.get(status, "")
        raise DriverError(
            f"{call} failed with {self._cu.error_name(status)} ({status})"
            + (f" for {what}" if what else "")
            + (f"; {hint}" if hint else "")
        )

    def value(self, result: tuple[int, int], call: str, what: str = "", hint: str = "") -> int:
        """Return what a driver call returned beside its status. Raises ``DriverError``."""
        self.check(result[0], call, what, hint)
        return result[1]

    def device(self, index: int) -> Device:
        """Return CUDA device ``index``. Its primary context is retained, not made current."""
        found = self._devices.get(index)
        if found is None:
            with self._lock:
                found = self._devices.get(index) or self._read_device(index)
                self._devices[index] = found
        return found

    def survey(self) -> tuple[Device, ...]:
        """Every device that the driver shows. No context is made, and ``context`` is 0."""
        count = self.value(self._cu.device_count(), "cuDeviceGetCount")
        return tuple(self._read_device(index, retain=False) for index in range(count))

    def _read_device(self, index: int, retain: bool = True) -> Device:
        cu, value = self._cu, self.value
        count = value(cu.device_count(), "cuDeviceGetCount")
        if not 0 <= index < count:
            raise DriverError(
                f"found device cuda:{index}, wanted one of the {count} that the driver shows; "
                "look at CUDA_VISIBLE_DEVICES"
            )
        handle = value(cu.device_get(index), "cuDeviceGet")
        status, name = cu.device_name(handle)
        self.check(status, "cuDeviceGetName")

        def attribute(which: int) -> int:
            return value(cu.device_attribute(which, handle), "cuDeviceGetAttribute")

        major, minor = attribute(_CAPABILITY_MAJOR), attribute(_CAPABILITY_MINOR)
        context = 0
        if retain:
            context = value(cu.primary_context(handle), "cuDevicePrimaryCtxRetain", f"cuda:{index}")
        return Device(
            index=index,
            name=name.decode(errors="replace"),
            capability=major * 10 + minor,
            max_shared=attribute(_MAX_SHARED_OPT_IN),
            context=context,
        )

    def current_device(self) -> int:
        """The device of the calling thread's context, or 0 where it has none."""
        if self.value(self._cu.current_context(), "cuCtxGetCurrent") == 0:
            return 0
        return self.value(self._cu.context_device(), "cuCtxGetDevice")

    def device_of(self, address: int) -> int | None:
        """The device whose memory ``address`` is, or None where the driver knows no such memory."""
        status, index = self._cu.pointer_device(address)
        return index if status == 0 and index >= 0 else None

    def capture_id(self, stream: int) -> int:
        """Return what tells the capture that ``stream`` is part of from every other one."""
        return self.value(self._cu.capture_id(stream), "cuStreamGetCaptureInfo")

    def is_capturing(self, stream: int) -> bool:
        """Whether ``stream`` is being captured into a graph."""
        return self.value(self._cu.is_capturing(stream), "cuStreamIsCapturing") != 0

    @contextmanager
    def current(self, device: Device) -> Iterator[None]:
        """Have the device's primary context current in this thread, and afterwards what was before."""
        if self.value(self._cu.current_context(), "cuCtxGetCurrent") == device.context:
            yield
            return
        self.check(self._cu.push_context(device.context), "cuCtxPushCurrent", str(device))
        try:
            yield
        finally:
            self.check(self._cu.pop_context(), "cuCtxPopCurrent", str(device))

    def has_loaded(self, sha256: str) -> bool:
        """Whether the cubin is in the driver."""
        return sha256 in self._libraries

    def function(self, device: Device, image: Image, stream: int) -> int:
        """Return the handle of a kernel that is ready to launch on ``device``, loading it at first use.

        Needs the device's context to be current. Raises ``LaunchError`` where ``stream`` is being
        captured and the cubin is not loaded yet.
        """
        key = (image.sha256, image.symbol, device.index)
        found = self._ready.get(key)
        if found is None:
            with self._lock:
                found = self._ready.get(key)
                if found is None:
                    kernel = self._load(image, stream)
                    self._prepare(kernel, device, image)
                    # A kernel is the same on every device; what this one launches is the function of
                    # its context. Launching the kernel itself looks that up each time.
                    found = self.value(
                        self._cu.kernel_function(kernel),
                        "cuKernelGetFunction",
                        f"kernel {image.kernel!r} of target {image.target} on {device}",
                    )
                    self._ready[key] = found
        return found

    def _load(self, image: Image, stream: int) -> int:
        found = self._kernels.get((image.sha256, image.symbol))
        if found is not None:
            return found
        cu = self._cu
        what = f"kernel {image.kernel!r} of target {image.target}"
        library = self._libraries.get(image.sha256)
        if library is None:
            if self.value(cu.is_capturing(stream), "cuStreamIsCapturing", what) != 0:
                raise LaunchError(
                    f"{what} is not loaded yet, and the stream is being captured; load it before the capture "
                    f"begins: {image.preload}"
                )
            started = time.perf_counter()
            data = image.read()
            result = cu.load_library(data)
            hint = self._image_hint(image) if result[0] in _BAD_IMAGE else ""
            library = self.value(result, "cuLibraryLoadData", what, hint)
            self._libraries[image.sha256] = library
            stats.kernel(image.kernel).load(time.perf_counter() - started)
        kernel = self.value(
            cu.library_kernel(library, image.symbol.encode()),
            "cuLibraryGetKernel",
            f"{what} ({image.symbol})",
        )
        return self._kernels.setdefault((image.sha256, image.symbol), kernel)

    def _image_hint(self, image: Image) -> str:
        return (
            f"the cubin is for {image.target} and was made by {image.made_by}, the driver supports CUDA "
            f"{self.cuda}; build for this device's capability, "
            "or upgrade the driver"
        )

    def _prepare(self, kernel: int, device: Device, image: Image) -> None:
        """Ask for what a launch may not have by default. Variants of one cubin share these values."""
        what = f"kernel {image.kernel!r} of target {image.target} on {device}"
        wanted = []
        if image.shared > _SHARED_WITHOUT_OPT_IN:
            wanted.append((_MAX_DYNAMIC_SHARED, image.shared))
        if image.num_ctas > _PORTABLE_CLUSTER:
            wanted.append((_NON_PORTABLE_CLUSTER, 1))
        for attribute, value in wanted:
            self.check(
                self._cu.set_kernel_attribute(attribute, value, kernel, device.index),
                "cuKernelSetAttribute",
                what,
                f"wanted {_FUNCTION_ATTRIBUTES[attribute]} = {value}, the device allows "
                f"{device.max_shared} bytes of shared memory",
            )

    def launch(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: int,
        shared: int,
        stream: int,
        params: int,
        num_ctas: int,
        what: str,
    ) -> None:
        """Launch ``grid`` programs of ``num_ctas`` blocks of ``block`` threads on ``stream``.

        ``params`` is the address of the array of parameter addresses. The blocks of a program
        lie along x, as Triton's own launcher puts them. The context must be current.
        """
        status = self._cu.launch(function, grid, block, shared, stream, params, num_ctas)
        self.launched(status, num_ctas, what)

    def launched(self, status: int, num_ctas: int, what: str) -> None:
        """Raise ``DriverError`` for the status of a launch that failed."""
        self.check(status, "cuLaunchKernel" if num_ctas == 1 else "cuLaunchKernelEx", what)

    def allocate(self, device: Device, size: int, stream: int, *, zero: bool = False) -> int:
        """The address of ``size`` bytes (a multiple of 4) on ``device``, for what follows on ``stream`` and
        for good. ``zero``: they are zeros. Raises ``DriverError``."""
        what = f"{size} bytes on {device}"
        with self.current(device):
            address = self.value(self._cu.allocate_async(size, stream), "cuMemAllocAsync", what)
            if zero:
                self.check(self._cu.zero_async(address, size // 4, stream), "cuMemsetD32Async", what)
        return address

    @contextmanager
    def memory(self, size: int, stream: int, what: str) -> Iterator[int]:
        """Lend ``size`` bytes in the order of ``stream``: what is launched on it meanwhile may use them."""
        address = self.value(self._cu.allocate_async(size, stream), "cuMemAllocAsync", what)
        try:
            yield address
        finally:
            self.check(self._cu.free_async(address, stream), "cuMemFreeAsync", what)


_driver: Driver | None = None
_driver_lock = threading.Lock()


def get_driver() -> Driver:
    """Return this process's driver, opening it at the first call.

    Raises ``DriverError`` where there is no driver or no GPU, and in a process that was forked
    from one that had used CUDA.
    """
    global _driver
    found = _driver
    if found is None:
        with _driver_lock:
            if _driver is None:
                _driver = Driver()
                # What was prepared holds handles of this process; a child's calls must come here.
                os.register_at_fork(after_in_child=native.disable)
            found = _driver
    if found.pid != os.getpid():
        raise DriverError(
            f"this process ({os.getpid()}) was forked from process {found.pid} after that one used CUDA, and "
            "CUDA does not work in such a child; start workers with the spawn or forkserver method, "
            "or fork before the first launch"
        )
    return found


def _driver_api() -> CudaApi:
    """The native launcher's driver functions, or cuda-bindings' where there is no native launcher."""
    found: CudaApi | None = native.module()
    if found is not None:
        return found
    from aot.loader.bindings import Bindings

    try:
        return Bindings()
    except ImportError as error:
        raise DriverError(f"cuda-bindings cannot be imported ({error}); install aot-kernels again") from None


def _open(api: CudaApi) -> int:
    """The status of ``cuInit``, after the driver library was opened."""
    try:
        return api.open_driver()
    except OSError as error:
        raise DriverError(
            f"found no CUDA driver ({error}); wanted libcuda.so.1, which comes with "
            "the NVIDIA driver. In a container, start it with GPU access"
        ) from None
