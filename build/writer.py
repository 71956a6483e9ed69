"""Compile results to a bundle on disk. The format is ``docs/bundle-format.md``."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import aot
from aot.build import abi
from aot.build.jobs import Compiled, CompileJob, Failed, Result, Toolchain
from aot.build.plan import Plan, PlannedKernel
from aot.build.specfile import spec_sha256
from aot.errors import BuildError, BundleError, UsageError
from aot.manifest import (
    FORMAT,
    FORMAT_VERSION,
    LAUNCH_ABI,
    Binary,
    CubinRef,
    Entry,
    Kernel,
    Manifest,
    Missing,
    Pack,
    Provenance,
    TableRef,
    Variant,
    decode_manifest,
    encode,
    encode_manifest,
)
from aot.reader import PACK_HEADER
from aot.target import Target

_LEVEL = 9


def check_result(variant: Variant, job: CompileJob, result: Result) -> Result:
    """Hold a compiled job against its variant: the ABI, the warps, the target's shared memory.

    Returns the result, or a ``Failed`` that says what differs.
    """
    if isinstance(result, Failed):
        return result
    limit = Target.parse(variant.target).max_shared
    if result.shared > limit:
        return Failed(
            error=f"needs {result.shared} bytes of shared memory, {variant.target} has {limit}; "
            "use a smaller block or fewer stages"
        )
    try:
        abi.check_abi(variant, result.info)
    except BuildError as error:
        return Failed(error=str(error))
    return result


def write_bundle(plan: Plan, results: Mapping[str, Result], toolchain: Toolchain, out: Path) -> Manifest:
    """Write the bundle of a plan and its results (by job key) to ``out``.

    Failures are listed in the manifest as missing. Equal arguments give equal bytes.
    ``out`` may exist if it is empty or a bundle. Raises ``UsageError`` for anything else.
    """
    check_output(out)
    failed = [
        Missing(kernel=r.kernel, target=r.target, axes=dict(r.axes), error=r.reason) for r in plan.refused
    ]
    packs: list[Pack] = []
    contents: dict[str, bytes] = {}
    tables: dict[str, list[TableRef]] = {kernel.spec.kernel: [] for kernel in plan.kernels}
    for target in map(str, plan.targets):
        builder = _PackBuilder(target)
        for kernel in plan.kernels:
            failed += builder.add_kernel(kernel, results)
        if not builder.variants:
            continue
        data = builder.finish(tables)
        name = f"{target}.{hashlib.sha256(data).hexdigest()[:16]}.pack"
        packs.append(Pack(target=target, file=name, size=len(data), cubins=len(builder.cubins)))
        contents[name] = data
    if not packs:
        raise BuildError("nothing was compiled, so there is no bundle to write")
    manifest = Manifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        launch_abi=LAUNCH_ABI,
        digest="",
        provenance=Provenance(
            aot=aot.__version__,
            triton=toolchain.triton,
            ptxas=toolchain.ptxas,
            environment=toolchain.environment,
            specs=_spec_hashes(plan),
        ),
        variants=sum(table.count for refs in tables.values() for table in refs),
        packs=tuple(packs),
        kernels=tuple(_kernel(kernel, tables[kernel.spec.kernel]) for kernel in plan.kernels),
        missing=tuple(failed),
    )
    _publish(out, contents, encode_manifest(manifest))
    return manifest


def _kernel(kernel: PlannedKernel, tables: list[TableRef]) -> Kernel:
    grid = kernel.spec.launch.grid
    return Kernel(
        name=kernel.spec.kernel,
        params=kernel.params,
        grid=None if grid is None else tuple(map(str, grid)),
        source=kernel.spec.source.written,
        source_sha256=kernel.source_sha256,
        tables=tuple(tables),
    )


def _spec_hashes(plan: Plan) -> dict[str, str]:
    """Each spec file by as much of its path as tells it from the others, so not by where a checkout lies."""
    files = sorted({kernel.spec.file for kernel in plan.kernels})
    shared = os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files])
    below = {file: Path(os.path.relpath(file, shared)).parts for file in files}
    names = {}
    for file, parts in below.items():
        others = [other for other in below.values() if other is not parts]
        ends = (parts[-length:] for length in range(1, len(parts)))
        end = next((end for end in ends if all(o[-len(end) :] != end for o in others)), parts)
        names[file] = "/".join(end)
    # Under an ASCII locale Python escapes the bytes of a path that it cannot decode.
    return {os.fsencode(name).decode(errors="replace"): spec_sha256(file) for file, name in names.items()}


class _PackBuilder:
    """Collects the variants of one target, then lays out its pack."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.cubins: dict[str, Compiled] = {}
        self.variants: dict[tuple[str, tuple[str, ...]], list[tuple[Variant, str]]] = {}

    def add_kernel(self, kernel: PlannedKernel, results: Mapping[str, Result]) -> Iterator[Missing]:
        """File the compiled variants of this target; yield those that failed."""
        for planned in kernel.variants:
            variant = planned.variant
            if variant.target != self.target:
                continue
            result = results[planned.job.key]
            if isinstance(result, Failed):
                yield Missing(
                    kernel=variant.kernel, target=variant.target, axes=variant.axes, error=result.error
                )
                continue
            sha256 = hashlib.sha256(result.cubin).hexdigest()
            self.cubins.setdefault(sha256, result)
            self.variants.setdefault((variant.kernel, variant.types), []).append((variant, planned.job.key))
        self.results = results

    def finish(self, tables: Mapping[str, list[TableRef]]) -> bytes:
        """Return the pack's bytes, and append the table references of each kernel to ``tables``."""
        data = bytearray(PACK_HEADER)
        refs: dict[str, CubinRef] = {}
        for sha256 in sorted(self.cubins):
            raw = self.cubins[sha256].cubin
            packed = zlib.compress(raw, _LEVEL)
            smaller = len(packed) < len(raw)
            blob = packed if smaller else raw
            refs[sha256] = CubinRef(
                sha256=sha256,
                offset=len(data),
                size=len(blob),
                raw_size=len(raw),
                codec="zlib" if smaller else "none",
            )
            data += blob
        for (kernel, types), members in self.variants.items():
            raw = encode([self._entry(variant, key, refs) for variant, key in members])
            blob = zlib.compress(raw, _LEVEL)
            tables[kernel].append(
                TableRef(
                    target=self.target,
                    types=types,
                    count=len(members),
                    offset=len(data),
                    size=len(blob),
                    raw_size=len(raw),
                    sha256=hashlib.sha256(raw).hexdigest(),
                )
            )
            data += blob
        return bytes(data)

    def _entry(self, variant: Variant, key: str, refs: Mapping[str, CubinRef]) -> Entry:
        result = self.results[key]
        if not isinstance(result, Compiled):
            raise BuildError(f"{variant.kernel}: found no binary for a variant that compiled")
        return Entry(
            variant=variant,
            binary=Binary(
                symbol=result.symbol,
                cubin=refs[hashlib.sha256(result.cubin).hexdigest()],
                params=result.info.params,
                hidden=abi.check_abi(variant, result.info),
                shared=result.shared,
                registers=result.info.registers,
                local=result.info.local,
                scratch=result.scratch,
            ),
        )


def check_output(out: Path) -> None:
    """Raise ``UsageError`` unless ``out`` is absent, empty or a bundle, and can be written."""
    if out.is_symlink() and not out.exists():
        raise UsageError(f"{out}: found a link to nothing, wanted a folder for the bundle; choose another -o")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: found a file, wanted a folder for the bundle; choose another -o")
    if out.is_dir():
        names = sorted(path.name for path in out.iterdir() if not path.name.startswith(".aot-"))
        if names and not _is_bundle(out):
            raise UsageError(
                f"{out}: found a folder with other content ({', '.join(names[:3])}), wanted a new or "
                "empty folder, or a bundle to replace; choose another -o"
            )
    place = out if out.is_dir() else next(p for p in [*out.absolute().parents] if p.exists())
    if not os.access(place, os.W_OK | os.X_OK) or not place.is_dir():
        raise UsageError(f"{place}: found no permission to write, wanted a folder for the bundle {out}")


def _is_bundle(out: Path) -> bool:
    try:
        decode_manifest((out / "manifest.json").read_bytes(), "")
    except BundleError:
        # A damaged or older bundle is still one to replace, if that is all there is.
        return all(p.name == "manifest.json" or p.suffix == ".pack" for p in out.iterdir())
    except OSError:
        return all(p.suffix == ".pack" or p.name.startswith(".aot-") for p in out.iterdir())
    return True


def _publish(out: Path, packs: Mapping[str, bytes], manifest: bytes) -> None:
    """Put the files in place: packs first, the manifest last, each by rename; then drop old packs."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _locked(out):
            for name, data in packs.items():
                _put(out, name, data)
            _put(out, "manifest.json", manifest)
            for path in out.iterdir():
                stale = path.suffix == ".pack" and path.name not in packs
                if stale or path.name.startswith(".aot-"):
                    path.unlink(missing_ok=True)
    except OSError as error:
        raise BuildError(f"{out}: cannot write the bundle: {error.strerror or error}") from None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's own lock: it leaves no file behind and dies with its holder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _put(folder: Path, name: str, data: bytes) -> None:
    fd, temporary = tempfile.mkstemp(dir=folder, prefix=".aot-")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner can read; a published file follows the umask.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, folder / name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
