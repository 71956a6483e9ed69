"""The one door to Triton: a compile job in, a cubin out, with no GPU, driver or torch.

Runs in a worker process, because Triton reads settings from the environment and MLIR is
not safe with threads.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource, CompilationError
from triton.knobs import runtime as runtime_knobs

from aot.build.abi import read_cubin
from aot.build.jobs import Compiled, CompileJob, Failed, Result, Toolchain
from aot.build.worker import PTXAS_VARIABLES
from aot.dtypes import parse_dtype
from aot.errors import BuildError
from aot.manifest import DTypeConst
from aot.target import Target

# Line info holds the source's path and modification time; without it the same kernel has
# the same bytes in any folder, and half the size. Nothing else of Triton's environment may
# change what is compiled, so every other setting is removed.
ENVIRONMENT = {"TRITON_DISABLE_LINE_INFO": "1"}
_OLDEST, _NEWEST = (3, 6), (3, 9)


def prepare_process(cache_dir: str, ptxas: dict[str, str]) -> None:
    """Make this process's environment the one that jobs are compiled in.

    ``ptxas`` has the variables of :data:`aot.build.worker.PTXAS_VARIABLES` that are set.
    """
    for name in list(os.environ):
        if name.startswith(("TRITON_", "NVPTX_", "LLVM_", "MLIR_")):
            del os.environ[name]
    os.environ.update(ptxas)
    os.environ.update(ENVIRONMENT)
    os.environ["TRITON_CACHE_DIR"] = cache_dir
    # A worker that is stopped leaves what it and its ptxas were writing: in a folder that the pool removes.
    os.environ["TMPDIR"] = tempfile.tempdir = cache_dir
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def toolchain(targets: tuple[str, ...]) -> Toolchain:
    """Return what this process compiles ``targets`` with.

    Raises ``BuildError`` before anything compiles: for a Triton outside the range, for a
    ptxas that does not run, and for a target that the ptxas does not know.
    """
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if not _OLDEST <= version <= _NEWEST:
        raise BuildError(
            f"found Triton {triton.__version__}, wanted 3.6 to 3.9; install one of these "
            "(pip install 'aot-kernels[build]')"
        )
    # Triton falls back to its own ptxas without a word when the path it was given is no good.
    for name in PTXAS_VARIABLES:
        if name in os.environ:
            _release(os.environ[name], name)
    releases = {}
    for target in targets:
        path = str(get_ptxas(Target.parse(target).capability).path)
        releases[path] = _release(path, path)
        known = sorted(set(re.findall(r"'(sm_\d+[a-z]?)'", _run([path, "--help"], path))))
        if target not in known:
            raise BuildError(
                f"target {target}: ptxas {releases[path]} does not know it, wanted one of "
                f"{', '.join(known)}; choose another target or set TRITON_PTXAS_PATH to a newer ptxas"
            )
    return Toolchain(
        triton=triton.__version__,
        ptxas=", ".join(sorted(set(releases.values()))),
        environment=ENVIRONMENT,
    )


def _release(path: str, place: str) -> str:
    """The release of the ptxas at ``path``, such as ``12.9.86``."""
    if not (os.path.isfile(path) and os.access(path, os.X_OK)):
        raise BuildError(f"{place}: found {path!r}, wanted an executable ptxas; correct or unset it")
    release = re.search(r"release \d+\.\d+, V(\S+)", _run([path, "--version"], place))
    if not release:
        raise BuildError(f"{place}: found a program that prints no CUDA release, wanted ptxas")
    return release.group(1)


def _run(command: list[str], place: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{place}: wanted a ptxas that runs, found: {error}") from None


def compile_job(job: CompileJob) -> Result:
    """Compile one job. A fault of the kernel or the compiler is a ``Failed``, never raised."""
    target = Target.parse(job.target)
    try:
        function = _load_function(job)
        source = ASTSource(
            function,
            dict(job.signature),
            {name: _constexpr(value) for name, value in job.constexprs},
            {
                (index,): [["tt.divisibility", 16]]
                for index, (name, _) in enumerate(job.signature)
                if name in job.divisible
            },
        )
        options: dict[str, Any] = {
            "num_warps": job.options.num_warps,
            "num_stages": job.options.num_stages,
            "num_ctas": job.options.num_ctas,
            "enable_fp_fusion": job.options.fp_fusion,
        }
        if job.options.maxnreg is not None:
            options["maxnreg"] = job.options.maxnreg
        # Triton adds the suffix "a" from capability 9.0 on; a plain target is assembled here.
        plain = target.capability >= 90 and not target.specific
        runtime_knobs.add_stages_inspection_hook = _plain_stages if plain else None
        compiled = triton.compile(source, target=GPUTarget("cuda", target.capability, 32), options=options)
        meta = compiled.metadata
        cubin = compiled.asm["cubin"]
        return Compiled(
            cubin=cubin,
            info=read_cubin(cubin, meta.name),
            symbol=meta.name,
            shared=meta.shared,
            scratch=(
                getattr(meta, "global_scratch_size", 0) or 0,
                getattr(meta, "global_scratch_align", 1) or 1,
            ),
        )
    except Exception as error:
        return Failed(error=_describe(error, job))


def _constexpr(value: object) -> object:
    if isinstance(value, DTypeConst):
        return getattr(tl, _TRITON_DTYPES[parse_dtype(value.dtype).triton])
    return value


_TRITON_DTYPES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "i1": "int1",
    "fp8e4nv": "float8e4nv",
    "fp8e5": "float8e5",
    "fp8e4b8": "float8e4b8",
    "fp8e5b16": "float8e5b16",
    **{f"{sign[0]}{bits}": f"{sign}{bits}" for sign in ("int", "uint") for bits in (8, 16, 32, 64)},
}

# Kernel files are imported as modules of one synthetic package, so that relative imports of
# their neighbours work. Its name is constant: helper functions carry it in their symbols.
_PACKAGE = "aot_kernel_source"
_folder: str | None = None


def _load_function(job: CompileJob) -> Any:
    module = importlib.import_module(job.module) if job.module else _load_file(job)
    found = getattr(module, job.function)
    # @triton.autotune and @triton.heuristics wrap the function; the spec gives their values.
    while not isinstance(found, triton.JITFunction) and hasattr(found, "fn"):
        found = found.fn
    if not isinstance(found, triton.JITFunction):
        raise BuildError(f"{job.function} is a {type(found).__name__}, wanted a @triton.jit function")
    return found


def _load_file(job: CompileJob) -> ModuleType:
    # The parent's locale may have escaped bytes of the path that this process decodes.
    folder, name = os.path.split(os.fsdecode(job.path.encode("utf-8", "surrogateescape")))
    if folder != _folder:
        _enter(folder)
    return importlib.import_module(f"{_PACKAGE}.{name.removesuffix('.py')}")


def _enter(folder: str) -> None:
    """Make ``folder`` the synthetic package, and a place to import from by plain name.

    What was imported from the folder before is dropped: two kernel folders may each have a
    ``helpers.py``, and the first one's must not serve the second.
    """
    global _folder
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        here = _folder and origin and os.path.dirname(os.path.abspath(origin)) == _folder
        if here or name.partition(".")[0] == _PACKAGE:
            del sys.modules[name]
    if _folder in sys.path:
        sys.path.remove(_folder)
    _folder = folder
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    package = ModuleType(_PACKAGE)
    package.__path__ = [folder]
    sys.modules[_PACKAGE] = package


def _plain_stages(*args: Any) -> tuple[str, str] | None:
    """Triton's stage hook: replace the last stage by one that assembles for the plain target.

    Without arguments Triton asks for a cache key, which no cache here ever sees.
    """
    if not args:
        return "aot-plain-target", "aot-plain-target"
    _, stages, options, _, capability = args
    stages["cubin"] = lambda ptx, metadata: _assemble(ptx, options, capability)
    return None


def _assemble(ptx: str, options: Any, capability: int) -> bytes:
    """Assemble PTX that was emitted for ``sm_NNa`` as plain ``sm_NN``.

    Fails, as it should, where the kernel uses an instruction of the specific target.
    """
    text, count = re.subn(
        rf"^\.target sm_{capability}a\b", f".target sm_{capability}", ptx, flags=re.MULTILINE
    )
    if count != 1:
        raise BuildError(f"found {count} lines '.target sm_{capability}a' in the PTX, wanted one")
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text, encoding="utf-8")
        command = [
            str(get_ptxas(capability).path),
            "-lineinfo",
            "-suppress-debug-info",
            *([] if options.enable_fp_fusion else ["--fmad=false"]),
            f"--gpu-name=sm_{capability}",
            str(source),
            "-o",
            str(cubin),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BuildError(f"ptxas for sm_{capability}: {done.stderr.strip() or done.returncode}")
        return cubin.read_bytes()


def _describe(error: BaseException, job: CompileJob) -> str:
    """The error in a line or two that a person can use, without this machine's paths."""
    while isinstance(error, CompilationError) and error.__cause__ is not None:
        if isinstance(error.__cause__, CompilationError) or error.error_message is None:
            error = error.__cause__
        else:
            break
    if isinstance(error, CompilationError):
        lines = (error.src or "").splitlines()
        number = getattr(error.node, "lineno", 0)
        code = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        text = f"{error.error_message}; at line {number} of the function, {code!r}"
    else:
        text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    text = text.replace(os.path.dirname(job.path) + os.sep, "")
    return f"{type(error).__name__}: {re.sub(r'/[^ ]*/', '', text)}"[:600]
