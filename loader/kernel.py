"""``Kernel``: a prebuilt kernel that is called as a ``@triton.jit`` function is.

Apart from ``aot.loader.bundle``, because opening a bundle needs nothing of what a call needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

# The reader decodes a kernel with this at the first call of one; importing it then would be in that call.
import aot.decoded  # noqa: F401
from aot.errors import KernelMiss, LaunchError, UsageError
from aot.loader import native, record, stats, torch_adapter
from aot.loader.arguments import Call, read_call
from aot.loader.driver import Device, Driver, Image, get_driver
from aot.loader.launch import (
    Grid,
    GridLike,
    Prepared,
    check_grid,
    grid_of_call,
    grid_of_spec,
)
from aot.loader.packing import Layout
from aot.loader.prepared import HeldCall, plan_of_call, plan_of_held
from aot.loader.select import Request, Selection, choose, select_kernel
from aot.manifest import Entry

if TYPE_CHECKING:
    from aot.loader.bundle import Bundle

# Choices that a kernel remembers. A service whose shapes never repeat must not grow for ever.
_MAX_CHOICES = 4096


class Kernel:
    """One kernel of a bundle. ``kernel[grid](*args, **kwargs)`` launches it.

    Arguments are those of the ``@triton.jit`` function: tensors, numbers and constexprs, by
    position or by name, and ``num_warps``, ``num_stages``, ``num_ctas``, ``maxnreg`` where the
    call insists on one. A constexpr that is left out and has no default is the variant's to
    decide. The grid is a tuple or list of one to three sizes, or a callable that returns one
    and gets every argument by name. ``kernel(*args, **kwargs)`` takes the grid of the spec.

    The kernel is queued on torch's current stream of the tensors' device (the default stream
    for arrays that are not torch's), or on the stream of :meth:`with_stream`. A call returns
    the chosen entry, or None where the grid is empty and nothing was launched.

    Raises ``LaunchError`` for a wrong call, ``KernelMiss`` where no variant serves it,
    ``BundleError`` for a damaged bundle, ``DriverError`` for what the driver refuses.
    """

    __slots__ = ("_bundle", "_choices", "_counters", "_native", "_stream", "info", "name")

    def __init__(self, bundle: Bundle, name: str, stream: int | None = None) -> None:
        self._bundle = bundle
        self._stream = stream
        self._choices = bundle._choices.setdefault(name, {})
        self._counters = stats.kernel(name)
        self.name = name
        self.info = bundle.reader.kernels[name]
        # One table of prepared calls for a kernel on whatever stream.
        self._native: Any | None = self._calls() if stream is None else bundle.kernel(name)._native

    def __repr__(self) -> str:
        return f"<aot.Kernel {self.name}({', '.join(p.name for p in self.info.params)})>"

    def __getitem__(self, grid: GridLike) -> Callable[..., Entry | None]:
        if self._native is not None:
            bound: Callable[..., Entry | None] = self._native.bind(grid, self._stream)
            return bound

        def call(*args: Any, **kwargs: Any) -> Entry | None:
            return self._run(grid, self._stream, args, kwargs)[0]

        return call

    def __call__(self, /, *args: Any, **kwargs: Any) -> Entry | None:
        if self._native is not None:
            entry: Entry | None = self._native.bind(None, self._stream)(*args, **kwargs)
            return entry
        return self._run(None, self._stream, args, kwargs)[0]

    def prepare(self, grid: GridLike | None, /, *args: Any, **kwargs: Any) -> Any:
        """Return ``kernel[grid](*args, **kwargs)`` as a call to hold, without launching it.

        The variant, the grid and every number are fixed; ``held(*tensors)`` takes a tensor for each
        pointer of the kernel, in its order, of the same dtypes and on the same device, and
        launches on torch's current stream. ``grid`` None is the spec's; one with a size of 0 has
        nothing to hold and is a ``LaunchError``. It goes on working when the bundle is closed.
        """
        held, given = self._hold(grid, args, kwargs)
        return plan_of_held(held, [given[name] for name in held.call.pointers])

    def hold(self, grid: GridLike | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HeldCall:
        """As :meth:`prepare`, as the reference in Python that a native plan falls back on."""
        return self._hold(grid, args, kwargs)[0]

    def _hold(
        self, grid: GridLike | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[HeldCall, Mapping[str, object]]:
        """The call to hold, and its arguments by name."""
        call, device, entry = self._resolve(args, kwargs)
        sizes = self._grid(grid, entry, call)
        if 0 in sizes:
            raise LaunchError(f"kernel {self.name!r}: found grid {sizes}, wanted programs to launch")
        return self._held(call, device, entry, sizes, self._stream), call.given

    def with_stream(self, stream: object) -> Kernel:
        """Return this kernel launching on ``stream``: a handle, or an object that has one as
        ``cuda_stream`` (torch's) or through ``__cuda_stream__`` (the CUDA Python protocol)."""
        return Kernel(self._bundle, self.name, _stream_handle(stream))

    def select(self, request: Request) -> Selection:
        """Choose the variant for ``request``, with the reasons; needs neither driver nor GPU."""
        return select_kernel(request, self.info, self._bundle.reader.table)

    def _calls(self) -> Any | None:
        """What serves repeated calls in native code."""
        module = native.module()
        if module is None:
            return None
        return module.Calls(tuple(param.name for param in self.info.params), self._run_native)

    def _prepare(self, entry: Entry) -> Prepared:
        # Entries live as long as the reader that keeps them, so their identity is a key.
        kept = self._bundle._prepared
        found = kept.get(id(entry))
        if found is None:
            variant, symbol = entry.variant, entry.binary.symbol
            where = f"{self._bundle.reader.path}: kernel {variant.kernel!r}, {symbol} of {variant.target}"
            layout = Layout.of(entry, where)
            found = kept[id(entry)] = Prepared(
                entry=entry, layout=layout, image=image_of(self._bundle, entry)
            )
        return found

    def _resolve(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Device, Entry]:
        """A call's arguments, its device, and the variant that serves it."""
        bundle = self._bundle
        if bundle._closed:
            raise LaunchError(f"kernel {self.name!r}: its bundle {bundle.reader.path} was closed")
        call = read_call(self.info, args, kwargs)
        driver = get_driver()
        device = driver.device(_device_index(driver, call))
        entry = self._choose(call, device)
        if record.calls is not None:
            record.note_call(bundle.reader, self.info, self._request(call, device))
        return call, device, entry

    def _launched(self) -> None:
        """Count a call that was served."""
        for name in ("hits", "launches"):
            self._bundle._count(name)
        self._counters.hit()
        self._counters.launch()

    def _held(self, call: Call, device: Device, entry: Entry, sizes: Grid, stream: int | None) -> HeldCall:
        return HeldCall(
            driver=get_driver(),
            device=device,
            prepared=self._prepare(entry),
            # The objects of the call would be kept alive for nothing.
            call=replace(call, given={}),
            grid=sizes,
            stream=stream,
            count=self._launched,
            kernel_tally=native.kernel_tally(self.name),
            bundle_tally=self._bundle.tally,
        )

    def _run(
        self, grid: GridLike | None, stream: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Entry | None, HeldCall | None, Mapping[str, object]]:
        """Launch; return the entry (None: an empty grid), what was launched, and the arguments by name."""
        bundle = self._bundle
        if grid is not None and not callable(grid) and 0 in check_grid(self.name, grid):
            return None, None, read_call(self.info, args, kwargs).given
        call, device, entry = self._resolve(args, kwargs)
        sizes = self._grid(grid, entry, call)
        if 0 in sizes:
            bundle._count("hits")
            self._counters.hit()
            return None, None, call.given
        held = self._held(call, device, entry, sizes, stream)
        held.launch(call.pointers)
        return entry, held, call.given

    def _run_native(
        self, bound: tuple[GridLike | None, int | None], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Entry | None, Any]:
        """As :meth:`_run`, for the native launcher, which keeps the plan for calls like this one."""
        grid, stream = bound
        entry, held, given = self._run(grid, stream, args, kwargs)
        if held is None or record.calls is not None:
            return entry, None
        names = [param.name for param in self.info.params]
        return entry, plan_of_call(held, names, given, own_grid=grid is not None)

    def _choose(self, call: Call, device: Device) -> Entry:
        """The variant that serves a call. Selection is pure, so equal calls share one choice."""
        key = (device.capability, device.max_shared, call.key())
        entry = self._choices.get(key)
        if isinstance(entry, Entry):
            return entry
        request = self._request(call, device)
        if entry is None:
            entry = choose(request, self.info, self._bundle.reader.table) or self._miss(request, device)
            self._remember(key, entry)
        if isinstance(entry, Entry):
            return entry
        self._bundle._count("misses")
        self._counters.miss()
        if record.misses is not None:
            record.note_miss(self._bundle.reader, self.info, request)
        # The same error is raised again for an equal call, and would collect a traceback each time.
        raise entry.with_traceback(None)

    def _request(self, call: Call, device: Device) -> Request:
        return Request(
            kernel=self.name,
            args=call.values(),
            constexprs=call.constexprs,
            options=call.options,
            capability=device.capability,
            max_shared=device.max_shared,
        )

    def _miss(self, request: Request, device: Device) -> KernelMiss:
        from aot.loader import miss  # Only a miss pays for its words.

        selection = self.select(request)
        return miss.kernel_miss(self._bundle.reader, self.info, request, selection, str(device))

    def _remember(self, key: object, entry: Entry | KernelMiss) -> None:
        if len(self._choices) >= _MAX_CHOICES:
            self._choices.clear()
        self._choices[key] = entry

    def _grid(self, grid: GridLike | None, entry: Entry, call: Call) -> Grid:
        variant = entry.variant
        found = grid_of_spec(self.info, variant, call) if grid is None else grid_of_call(grid, variant, call)
        return check_grid(self.name, found, variant.options.num_ctas)


def image_of(bundle: Bundle, entry: Entry) -> Image:
    """The cubin of ``entry`` as the driver is given it; reading it counts as one of the bundle's loads."""
    variant, binary = entry.variant, entry.binary

    def read() -> bytes:
        data = bundle.reader.cubin(variant.target, binary.cubin)
        bundle._count("loads")
        return data

    dtype = f', dtypes=["{variant.types[0]}"]' if variant.types else ""
    return Image(
        sha256=binary.cubin.sha256,
        symbol=binary.symbol,
        read=read,
        shared=binary.shared,
        num_ctas=variant.options.num_ctas,
        kernel=variant.kernel,
        target=variant.target,
        made_by=f"ptxas {bundle.reader.ptxas}",
        preload=f'bundle.preload(kernels=["{variant.kernel}"]{dtype})',
    )


def _device_index(driver: Driver, call: Call) -> int:
    """The tensors' device; where none says, the one whose memory they are; else the current one."""
    if call.device is not None:
        return call.device
    for pointer in call.pointers.values():
        found = driver.device_of(pointer.address) if pointer.address else None
        if found is not None:
            return found
    current = torch_adapter.current_device()
    return driver.current_device() if current is None else current


def _stream_handle(stream: object) -> int:
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    handle = getattr(stream, "cuda_stream", None)
    if isinstance(handle, int):
        return handle
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair = protocol() if callable(protocol) else protocol
        return int(pair[1])
    raise UsageError(f"found stream {stream!r}, wanted a handle, torch's stream or a CUDA Python stream")
