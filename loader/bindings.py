"""cuda-bindings behind the functions of the native launcher: the driver where no compiler built that one.

Every function takes and returns plain numbers; the first is CUDA's status. This is the only
module that imports ``cuda.bindings``, and it does so when the driver is opened.
"""

from __future__ import annotations

from typing import Any

_DEVICE_ORDINAL = 9


class Bindings:
    """The driver API of :class:`aot.loader.cudaapi.CudaApi` over cuda-bindings.

    Raises ``ImportError`` where the package is missing or broken.
    """

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._cu: Any = driver

    def open_driver(self) -> int:
        try:
            return int(self._cu.cuInit(0)[0])
        except Exception as error:
            # cuda-bindings raises a type of its own, another in each major version.
            raise OSError(f"{type(error).__name__}: {error}") from None

    def driver_version(self) -> tuple[int, int]:
        return _numbers(self._cu.cuDriverGetVersion())

    def device_count(self) -> tuple[int, int]:
        return _numbers(self._cu.cuDeviceGetCount())

    def device_get(self, ordinal: int) -> tuple[int, int]:
        return _numbers(self._cu.cuDeviceGet(ordinal))

    def device_name(self, device: int) -> tuple[int, bytes]:
        status, name = self._cu.cuDeviceGetName(256, self._cu.CUdevice(device))
        return int(status), (name or b"").split(b"\0")[0]

    def device_attribute(self, attribute: int, device: int) -> tuple[int, int]:
        kind = self._cu.CUdevice_attribute(attribute)
        return _numbers(self._cu.cuDeviceGetAttribute(kind, self._cu.CUdevice(device)))

    def primary_context(self, device: int) -> tuple[int, int]:
        return _numbers(self._cu.cuDevicePrimaryCtxRetain(self._cu.CUdevice(device)))

    def current_context(self) -> tuple[int, int]:
        return _numbers(self._cu.cuCtxGetCurrent())

    def context_device(self) -> tuple[int, int]:
        return _numbers(self._cu.cuCtxGetDevice())

    def push_context(self, context: int) -> int:
        return int(self._cu.cuCtxPushCurrent(self._cu.CUcontext(context))[0])

    def pop_context(self) -> int:
        return int(self._cu.cuCtxPopCurrent()[0])

    def pointer_device(self, address: int) -> tuple[int, int]:
        kind = self._cu.CUpointer_attribute(_DEVICE_ORDINAL)
        return _numbers(self._cu.cuPointerGetAttribute(kind, address), missing=-1)

    def is_capturing(self, stream: int) -> tuple[int, int]:
        return _numbers(self._cu.cuStreamIsCapturing(stream))

    def capture_id(self, stream: int) -> tuple[int, int]:
        status, _, number, *_ = self._cu.cuStreamGetCaptureInfo(stream)
        return int(status), int(number or 0)

    def load_library(self, image: bytes) -> tuple[int, int]:
        return _numbers(self._cu.cuLibraryLoadData(image, [], [], 0, [], [], 0))

    def library_kernel(self, library: int, symbol: bytes) -> tuple[int, int]:
        return _numbers(self._cu.cuLibraryGetKernel(self._cu.CUlibrary(library), symbol))

    def kernel_function(self, kernel: int) -> tuple[int, int]:
        return _numbers(self._cu.cuKernelGetFunction(self._cu.CUkernel(kernel)))

    def set_kernel_attribute(self, attribute: int, value: int, kernel: int, device: int) -> int:
        cu = self._cu
        kind = cu.CUfunction_attribute(attribute)
        return int(cu.cuKernelSetAttribute(kind, value, cu.CUkernel(kernel), cu.CUdevice(device))[0])

    def allocate_async(self, size: int, stream: int) -> tuple[int, int]:
        return _numbers(self._cu.cuMemAllocAsync(size, stream))

    def free_async(self, address: int, stream: int) -> int:
        return int(self._cu.cuMemFreeAsync(address, stream)[0])

    def zero_async(self, address: int, words: int, stream: int) -> int:
        return int(self._cu.cuMemsetD32Async(address, 0, words, stream)[0])

    def error_name(self, status: int) -> str:
        try:
            return str(self._cu.CUresult(status).name)
        except ValueError:
            return "an unknown CUDA error"

    def launch(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: int,
        shared: int,
        stream: int,
        params: int,
        num_ctas: int,
    ) -> int:
        cu = self._cu
        if num_ctas == 1:
            result = cu.cuLaunchKernel(cu.CUfunction(function), *grid, block, 1, 1, shared, stream, params, 0)
            return int(result[0])
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
        return int(cu.cuLaunchKernelEx(config, cu.CUfunction(function), params, 0)[0])


def _numbers(result: tuple[Any, ...], missing: int = 0) -> tuple[int, int]:
    """Status and value as numbers; a failed call returns no value."""
    value = result[1]
    return int(result[0]), missing if value is None else int(value)
