"""Our kernels behind torch's own functions: ``torch.sum(x)`` and ``x.sum()`` on CUDA tensors.

The kernels are registered with torch's dispatcher for CUDA, below autograd, autocast, vmap and
subclasses, which stay torch's. A call that is not served goes to the kernel that was there before.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.autograd import forward_ad

from aot.errors import KernelMiss, LaunchError, NoBundleError, UsageError, nearest
from aot.loader import stats
from aot.loader.ops import backend, direct
from aot.loader.ops.aten import OVERLOADS, Adapter

# Ours refuses in torch's words; then ATen gets the call, and says so itself. What is not here is
# a fault, of a bundle or the driver, that nobody should have to guess.
_NOT_SERVED = (KernelMiss, LaunchError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)

_lock = threading.Lock()
_local = threading.local()


def override(*names: str) -> Override:
    """Put prebuilt kernels behind torch's functions ``names``, such as ``"sum"``, on CUDA tensors.

    Use it as a context manager, or call ``enable()`` on it, and ``disable()`` to undo it. It holds for
    the whole process, every thread. Raises ``UsageError`` for a name that is none of ``aot.ops``'
    functions, and for none.
    """
    return Override(names)


def override_all() -> Override:
    """Put prebuilt kernels behind every function that ``aot.ops`` has: see :func:`override`."""
    return Override(tuple(OVERLOADS))


class Override:
    """A set of functions that prebuilt kernels stand behind while it is enabled.

    ``names`` are the functions. ``dispatch_key`` is the key of torch's dispatcher to register for.
    """

    def __init__(self, names: tuple[str, ...], dispatch_key: str = "CUDA") -> None:
        for name in names:
            if name not in OVERLOADS:
                raise UsageError(
                    f"aot.override: found {name!r}, wanted one of {', '.join(OVERLOADS)}"
                    + (nearest(name, OVERLOADS) if isinstance(name, str) else "")
                )
        if not names:
            raise UsageError(f"aot.override: found no name, wanted some of {', '.join(OVERLOADS)}")
        self.names = tuple(dict.fromkeys(names))
        self._key = dispatch_key
        self._library: torch.library.Library | None = None

    def __repr__(self) -> str:
        state = "enabled" if self._library is not None else "disabled"
        return f"<aot.override of {', '.join(self.names)}: {state}>"

    def enable(self) -> Override:
        """Register the kernels; all of them, or none and an error.

        Raises ``UsageError`` where one of the functions is overridden already, by whomever, and what
        ``aot.ops`` raises where there is no bundle.
        """
        # Without a bundle nothing would ever be served; better to hear it now.
        backend.current().kernel("reduce_rows")
        with _lock:
            self._refuse_second()
            library = torch.library.Library("aten", "IMPL", self._key)
            try:
                for name in self.names:
                    for overload, adapter in OVERLOADS[name].items():
                        self._register(library, name, overload, adapter)
            except BaseException:
                library._destroy()
                raise
            self._library = library
            _ours.update(self._overloads())
        return self

    def disable(self) -> None:
        """Take the kernels away again, and leave torch as it was. Nothing happens if none are there."""
        with _lock:
            if self._library is not None:
                self._library._destroy()
                self._library = None
                _ours.difference_update(self._overloads())

    def _overloads(self) -> set[tuple[str, str]]:
        return {(overload, self._key) for name in self.names for overload in OVERLOADS[name]}

    def __enter__(self) -> Override:
        return self.enable()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disable()

    def _refuse_second(self) -> None:
        for name in self.names:
            for overload in OVERLOADS[name]:
                if f"aten/{overload}/{self._key}" in torch.library._impls:
                    raise UsageError(
                        f"aot.override: aten::{overload} already has a Python kernel for {self._key}, from "
                        f"{_holder(overload, self._key)}; undo that first, or leave {name!r} out"
                    )

    def _register(self, library: torch.library.Library, name: str, overload: str, adapter: Adapter) -> None:
        try:
            previous = torch.library.get_kernel(f"aten::{overload}", self._key)
        except RuntimeError:
            raise UsageError(
                f"aot.override: torch {torch.__version__} has no kernel of aten::{overload} for {self._key}; "
                "install a build of torch that has"
            ) from None
        kernel = _kernel(name, adapter, previous)
        with warnings.catch_warnings():
            # torch warns of any kernel that replaces another; here that is what was asked for.
            warnings.filterwarnings("ignore", message="Warning only once", category=UserWarning)
            library.impl(overload, kernel, self._key, with_keyset=True)


# What is registered here now, to tell whose a second registration is.
_ours: set[tuple[str, str]] = set()


def _holder(overload: str, key: str) -> str:
    registered = getattr(getattr(torch, "_native", None), "registry", None)
    if (overload, key) in getattr(registered, "_aten_override_libs", {}):
        return "torch._native (torch._native.registry.deregister_op_overrides takes it away)"
    return "another aot.override" if (overload, key) in _ours else "another library"


def _kernel(name: str, adapter: Adapter, previous: Any) -> Callable[..., Any]:
    """The kernel of one overload: ours where it serves the call, else ``previous``."""
    function = direct.FUNCTIONS[name]
    counters = stats.op(name)

    def kernel(keyset: torch.DispatchKeySet, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # What we call in here, and what ATen's kernel calls, never comes back to us.
        if getattr(_local, "inside", False):
            return previous.call_boxed(keyset, input, *args, **kwargs)
        _local.inside = True
        try:
            try:
                found = adapter(function, _plain(input), *args, **kwargs)
                counters.hit()
                return found
            except (KernelMiss, NoBundleError):
                counters.miss()
                counters.fallback()
            except _NOT_SERVED:
                pass
            return previous.call_boxed(keyset, input, *args, **kwargs)
        finally:
            _local.inside = False

    return kernel


def _plain(input: torch.Tensor) -> torch.Tensor:
    # Autograd has recorded the call already, above this.
    return input.detach() if input.requires_grad or forward_ad._current_level >= 0 else input
