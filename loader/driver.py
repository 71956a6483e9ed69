"""The one door to the CUDA driver: every call is checked, every error names call, CUDA error and kernel.

``cuda.bindings`` is imported, and the driver library opened, when the first launch asks
for it and not before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aot.errors import DriverError, LaunchError

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
    900: "a stream is being captured: call the kernel once before the capture begins",
    906: "a stream is being captured: call the kernel once before the capture begins",
    901: "a stream is being captured: call the kernel once before the capture begins",
}
# The image is not one that this driver or this device can run.
_BAD_IMAGE = (200, 209, 218, 222)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU: ``index`` as CUDA counts them, ``capability`` major * 10 + minor, ``max_shared`` the
    largest dynamic shared memory of a block in bytes, ``context`` the handle of its primary context."""

    index: int
    name: str
    capability: int
    max_shared: int
    context: int

    def __str__(self) -> str:
        return f"cuda:{self.index} ({self.name}, capability {self.capability // 10}.{self.capability % 10})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A cubin to load: its ``sha256``, the ``symbol`` of its kernel, ``read`` that returns the verified
    bytes; ``shared`` and ``num_ctas`` as the variant launches it; ``kernel``, ``target`` and ``made_by``
    (the compiler) for messages."""

    sha256: str
    symbol: str
    read: Callable[[], bytes]
    shared: int
    num_ctas: int
    kernel: str
    target: str
    made_by: str


class Driver:
    """The driver of this process. Get it with :func:`get_driver`; safe to use from several threads.

    A cubin is loaded once and stays loaded for the life of the process: a captured graph or a
    running kernel may use it after its bundle was closed.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._cu, status = _open_driver()
        self._lock = threading.Lock()
        self._devices: dict[int, Device] = {}
        self._libraries: dict[str, Any] = {}
        self._kernels: dict[tuple[str, str], int] = {}
        self._ready: dict[tuple[str, str, int], int] = {}
        self.check(status, "cuInit")
        self.version = int(self.check(self._cu.cuDriverGetVersion(), "cuDriverGetVersion"))

    def check(self, result: tuple[Any, ...], call: str, what: str = "", hint: str = "") -> Any:
        """Return what a driver call returned beside its status. Raises ``DriverError``."""
        code = int(result[0])
        if code == 0:
            return result[1] if len(result) == 2 else None
        hint = hint or _HINTS.get(code, "")
        raise DriverError(
            f"{call} failed with {_name(result[0])} ({code})"
            + (f" for {what}" if what else "")
            + (f"; {hint}" if hint else "")
        )

    def device(self, index: int) -> Device:
        """Return CUDA device ``index``. Its primary context is retained, not made current."""
        found = self._devices.get(index)
        if found is None:
            with self._lock:
                found = self._devices.get(index) or self._read_device(index)
                self._devices[index] = found
        return found

    def _read_device(self, index: int) -> Device:
        cu, check = self._cu, self.check
        count = check(cu.cuDeviceGetCount(), "cuDeviceGetCount")
        if not 0 <= index < count:
            raise DriverError(
                f"found device cuda:{index}, wanted one of the {count} that the driver shows; "
                "look at CUDA_VISIBLE_DEVICES"
            )
        handle = check(cu.cuDeviceGet(index), "cuDeviceGet")
        name = check(cu.cuDeviceGetName(256, handle), "cuDeviceGetName")
        kinds = cu.CUdevice_attribute

        def attribute(which: str) -> int:
            kind = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{which}")
            return int(check(cu.cuDeviceGetAttribute(kind, handle), "cuDeviceGetAttribute"))

        major, minor = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
        context = check(cu.cuDevicePrimaryCtxRetain(handle), "cuDevicePrimaryCtxRetain", f"cuda:{index}")
        return Device(
            index=index,
            name=name.split(b"\0")[0].decode(errors="replace"),
            capability=major * 10 + minor,
            max_shared=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            context=int(context),
        )

    def current_device(self) -> int:
        """The device of the calling thread's context, or 0 where it has none."""
        if int(self.check(self._cu.cuCtxGetCurrent(), "cuCtxGetCurrent")) == 0:
            return 0
        return int(self.check(self._cu.cuCtxGetDevice(), "cuCtxGetDevice"))

    def device_of(self, address: int) -> int | None:
        """The device whose memory ``address`` is, or None where the driver knows no such memory."""
        kind = self._cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        status, index = self._cu.cuPointerGetAttribute(kind, address)
        return int(index) if int(status) == 0 and int(index) >= 0 else None

    def capture_id(self, stream: int) -> int:
        """Return what tells the capture that ``stream`` is part of from every other one."""
        result = self._cu.cuStreamGetCaptureInfo(stream)
        self.check(result, "cuStreamGetCaptureInfo")
        return int(result[2])

    @contextmanager
    def current(self, device: Device) -> Iterator[None]:
        """Have the device's primary context current in this thread, and afterwards what was before."""
        if int(self.check(self._cu.cuCtxGetCurrent(), "cuCtxGetCurrent")) == device.context:
            yield
            return
        context = self._cu.CUcontext(device.context)
        self.check(self._cu.cuCtxPushCurrent(context), "cuCtxPushCurrent", str(device))
        try:
            yield
        finally:
            self.check(self._cu.cuCtxPopCurrent(), "cuCtxPopCurrent", str(device))

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
                    found = self._load(image, stream)
                    self._prepare(found, device, image)
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
            if int(self.check(cu.cuStreamIsCapturing(stream), "cuStreamIsCapturing", what)) != 0:
                raise LaunchError(
                    f"{what} is not loaded yet, and the stream is being captured; "
                    "call it once before the capture begins"
                )
            data = image.read()
            result = cu.cuLibraryLoadData(data, [], [], 0, [], [], 0)
            hint = self._image_hint(image) if int(result[0]) in _BAD_IMAGE else ""
            library = self.check(result, "cuLibraryLoadData", what, hint)
            self._libraries[image.sha256] = library
        kernel = self.check(
            cu.cuLibraryGetKernel(library, image.symbol.encode()),
            "cuLibraryGetKernel",
            f"{what} ({image.symbol})",
        )
        return self._kernels.setdefault((image.sha256, image.symbol), int(kernel))

    def _image_hint(self, image: Image) -> str:
        return (
            f"the cubin is for {image.target} and was made by {image.made_by}, the driver supports CUDA "
            f"{self.version // 1000}.{self.version % 1000 // 10}; build for this device's capability, "
            "or upgrade the driver"
        )

    def _prepare(self, kernel: int, device: Device, image: Image) -> None:
        """Ask for what a launch may not have by default. Variants of one cubin share these values."""
        attributes = self._cu.CUfunction_attribute
        what = f"kernel {image.kernel!r} of target {image.target} on {device}"
        wanted = []
        if image.shared > _SHARED_WITHOUT_OPT_IN:
            wanted.append((attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, image.shared))
        if image.num_ctas > _PORTABLE_CLUSTER:
            wanted.append((attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
        for attribute, value in wanted:
            result = self._cu.cuKernelSetAttribute(
                attribute, value, self._cu.CUkernel(kernel), self._cu.CUdevice(device.index)
            )
            self.check(
                result,
                "cuKernelSetAttribute",
                what,
                f"wanted {attribute.name} = {value}, the device allows {device.max_shared} bytes of "
                "shared memory",
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
        cu = self._cu
        if num_ctas == 1:
            result = cu.cuLaunchKernel(cu.CUfunction(function), *grid, block, 1, 1, shared, stream, params, 0)
            self.check(result, "cuLaunchKernel", what)
            return
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid[0] * num_ctas, grid[1], grid[2]
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = shared
        config.hStream = cu.CUstream(stream)
        cluster, policy = cu.CUlaunchAttribute(), cu.CUlaunchAttribute()
        cluster.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dim = cluster.value.clusterDim
        dim.x, dim.y, dim.z = num_ctas, 1, 1
        policy.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
        policy.value.clusterSchedulingPolicyPreference = (
            cu.CUclusterSchedulingPolicy.CU_CLUSTER_SCHEDULING_POLICY_SPREAD
        )
        config.attrs = [cluster, policy]
        config.numAttrs = 2
        result = cu.cuLaunchKernelEx(config, cu.CUfunction(function), params, 0)
        self.check(result, "cuLaunchKernelEx", what)

    @contextmanager
    def memory(self, size: int, stream: int, what: str) -> Iterator[int]:
        """Lend ``size`` bytes in the order of ``stream``: what is launched on it meanwhile may use them."""
        address = int(self.check(self._cu.cuMemAllocAsync(size, stream), "cuMemAllocAsync", what))
        try:
            yield address
        finally:
            self.check(self._cu.cuMemFreeAsync(address, stream), "cuMemFreeAsync", what)


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
            found = _driver = _driver or Driver()
    if found.pid != os.getpid():
        raise DriverError(
            f"this process ({os.getpid()}) was forked from process {found.pid} after that one used CUDA, and "
            "CUDA does not work in such a child; start workers with the spawn or forkserver method, "
            "or fork before the first launch"
        )
    return found


def _open_driver() -> tuple[Any, tuple[Any, ...]]:
    """Return cuda-bindings' driver module and the status of ``cuInit``, the call that opens the library."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DriverError(f"cuda-bindings cannot be imported ({error}); install aot-kernels again") from None
    try:
        return driver, driver.cuInit(0)
    except Exception as error:
        # cuda-bindings raises a type of its own, another in each major version.
        raise DriverError(
            f"found no CUDA driver ({type(error).__name__}: {error}); wanted libcuda.so.1, which comes with "
            "the NVIDIA driver. In a container, start it with GPU access"
        ) from None


def _name(status: Any) -> str:
    return str(getattr(status, "name", None) or "an unknown CUDA error")
