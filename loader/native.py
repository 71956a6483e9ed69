"""The door to the native launcher, ``aot/loader/_native.abi3.so``.

It is built when aot-kernels is installed where a C compiler is, and needs nothing at run time
but a torch that offers DLPack's C exchange API (2.10 or newer) for calls on torch's tensors.
Without it, or with ``AOT_NATIVE=0``, every call takes the way through Python.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import lru_cache
from typing import Any

from aot.loader import stats

VARIABLE = "AOT_NATIVE"


@lru_cache(maxsize=1)
def module() -> Any | None:
    """The extension module, or None where it is not built or not wanted."""
    return _load()[0]


def available() -> bool:
    """Whether calls can be served by native code in this process."""
    return module() is not None


def reason() -> str:
    """Why calls take the way through Python, or what serves them instead."""
    return _load()[1]


@lru_cache(maxsize=1)
def _load() -> tuple[Any | None, str]:
    if os.environ.get(VARIABLE, "1") == "0":
        return None, f"{VARIABLE}=0 asks for the pure-Python path"
    try:
        from aot.loader import _native
    except ImportError as error:
        return None, f"the native launcher cannot be imported ({error}); install aot-kernels where gcc is"
    return _native, "the native launcher"


device_type = "cuda"
"""The type of torch device whose tensors are served."""

_lock = threading.Lock()
_configured: bool | None = None


def with_torch() -> Any | None:
    """The module, ready for torch's tensors, or None where it is missing or torch is too old or absent."""
    found = module()
    if found is None or _configured:
        return found
    torch: Any = sys.modules.get("torch")
    # A torch that another thread is importing lacks what comes late in it.
    if torch is None or not hasattr(torch, "compile"):
        return None
    with _lock:
        return found if _configure(found, torch) else None


def _configure(found: Any, torch: Any) -> bool:
    global _configured
    if _configured is None:
        capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        if capsule is None:
            _configured = False
            return False
        try:
            configure(found, torch, capsule, "cuda")
        except (AttributeError, RuntimeError) as error:
            # A release of torch that keeps these things elsewhere is served in Python.
            import logging

            logging.getLogger("aot").warning(
                "calls take the way through Python: torch %s cannot be asked natively (%s)",
                torch.__version__,
                error,
            )
            _configured = False
            return False
        _configured = True
    return _configured


def configure(found: Any, torch: Any, capsule: Any, served: str) -> None:
    """Hand torch's functions to the module. ``served`` is whose tensors are served: "cuda", or
    "cpu" for tests that have no GPU."""
    global device_type
    from torch.autograd import forward_ad

    device_type = served

    found.configure(
        capsule=capsule,
        device_type={"cpu": 1, "cuda": 2}[device_type],
        tensor=torch.Tensor,
        parameter=torch.nn.Parameter,
        int8=torch.int8,
        uint8=torch.uint8,
        empty_strided=_empty_strided(torch, device_type),
        dispatch_modes=torch._C._len_torch_dispatch_stack,
        tracing=torch._C._is_tracing,
        grad_enabled=torch.is_grad_enabled,
        increment_version=torch._C._increment_version,
        forward_ad=vars(forward_ad),
    )
    found.compare_dtypes(torch.dtype)
    found.enable(not (_paused or _disabled))


def _empty_strided(torch: Any, device_type: str) -> Any:
    """What allocates a tensor from (shape, strides, dtype) on torch's current device."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    # torch's own compiled code allocates with this: a third of the time of torch.empty.
    quick = getattr(guards, f"_empty_strided_{device_type}", None)
    if quick is not None:
        return quick

    def allocate(shape: Any, strides: Any, dtype: Any) -> Any:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device_type)

    return allocate


_tallies: dict[str, Any] = {}


def kernel_tally(name: str) -> Any | None:
    """What counts the launches of kernel ``name`` in native code, whatever its bundle."""
    found = module()
    if found is None:
        return None
    with _lock:
        if not _tallies:
            stats.register(_count_kernels, "kernels")
        if name not in _tallies:
            _tallies[name] = found.Tally()
        return _tallies[name]


def _count_kernels() -> dict[str, dict[str, int]]:
    with _lock:
        tallies = dict(_tallies)
    return {name: {"hits": tally.hits, "launches": tally.launches} for name, tally in tallies.items()}


generation = 0
"""Raised by :func:`invalidate`."""


def invalidate() -> None:
    """Forget what was prepared, in every table: another bundle, backend or policy serves from now on."""
    global generation
    generation += 1
    if "aot.loader._native" in sys.modules:
        sys.modules["aot.loader._native"].invalidate()


_paused = False


def pause(paused: bool) -> None:
    """Send every call through Python, which sees what native code does not look at; or no longer."""
    global _paused
    _paused = paused
    if _configured and "aot.loader._native" in sys.modules:
        sys.modules["aot.loader._native"].enable(not (paused or _disabled))


_disabled = False


def disable() -> None:
    """Send every call of this process through Python from now on."""
    global _disabled
    _disabled = True
    if "aot.loader._native" in sys.modules:
        sys.modules["aot.loader._native"].enable(False)
