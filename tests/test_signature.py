"""A kernel's parameters, read from its syntax tree."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from aot.build.signature import Parameter, read_signature, read_source, source_path
from aot.errors import UsageError
from aot.spec import Source

KERNELS = """\
import torch_that_is_not_installed
import triton
import triton.language as tl
from triton.language import constexpr

LIMIT = 7


@triton.autotune(configs=[], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit(do_not_specialize=["n"])
def every_kind(
    x_ptr,
    n: tl.int32,
    eps: float = 1e-5,
    scale=-2,
    A: tl.constexpr = 16,
    B: constexpr = None,
    C: "tl.constexpr" = "fast",
    D: triton.language.constexpr = True,
    E: tl.constexpr = LIMIT,
    F: tl.constexpr = -True,
    *,
    G: tl.constexpr = -1.5,
    H: tl.constexpr,
):
    raise RuntimeError("ran")


@triton.jit
def positional_only(a, /, b=1): pass


def plain(x): pass


@triton.jit
def star(x, *rest): pass


@triton.jit
def stars(x, **rest): pass


try:
    from somewhere import jit

    @jit
    def in_try(x): pass
except ImportError:
    pass

if LIMIT > 3:

    @gluon.jit
    def twice(a): pass

else:

    @gluon.jit
    def twice(b): pass


@triton.jit
def outer(x):
    @triton.jit
    def inner(y): pass


def njit(f): return f


@njit
def other_jit(x): pass
"""


def at(path: Path, function: str) -> Source:
    return Source(written=f"{path.name}:{function}", path=str(path), module=None, function=function)


def module(name: str, function: str = "k") -> Source:
    return Source(written=f"{name}:{function}", path=None, module=name, function=function)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    return path


def refusal(source: Source) -> str:
    with pytest.raises(UsageError) as caught:
        read_signature(source)
    return str(caught.value)


def test_every_kind_of_parameter(kernels: Path) -> None:
    """Nothing runs: the file's imports would fail, and its functions raise."""
    signature = read_signature(at(kernels, "every_kind"))

    def parameter(name: str, constexpr: bool, *default: object) -> Parameter:
        return Parameter(
            name=name,
            constexpr=constexpr,
            has_default=bool(default),
            default=default[0] if default else None,  # type: ignore[arg-type]
        )

    assert signature.parameters == (
        parameter("x_ptr", False),
        parameter("n", False),
        parameter("eps", False, 1e-5),
        parameter("scale", False, -2),
        parameter("A", True, 16),
        parameter("B", True, None),
        parameter("C", True, "fast"),
        parameter("D", True, True),
        parameter("E", True),
        parameter("F", True),
        parameter("G", True, -1.5),
        parameter("H", True),
    )
    assert signature.names[:3] == ("x_ptr", "n", "eps")
    assert signature.constexprs == set("ABCDEFGH")
    assert signature.defaults == {
        "eps": 1e-5, "scale": -2, "A": 16, "B": None, "C": "fast", "D": True, "G": -1.5
    }  # fmt: skip
    assert (signature.path, signature.function) == (str(kernels), "every_kind")
    assert KERNELS.splitlines()[signature.line - 1] == "def every_kind("


def test_positional_only_parameters(kernels: Path) -> None:
    assert read_signature(at(kernels, "positional_only")).names == ("a", "b")


def test_functions_inside_statements_of_the_top_level(kernels: Path) -> None:
    assert read_signature(at(kernels, "in_try")).names == ("x",)


def test_what_is_refused(kernels: Path) -> None:
    lines = {text: number for number, text in enumerate(KERNELS.splitlines(), 1)}
    jits = "every_kind, positional_only, star, stars, in_try, twice, outer"
    assert refusal(at(kernels, "every_knd")) == (
        f"found no function 'every_knd' in {kernels}, wanted one of {jits}; did you mean 'every_kind'?"
    )
    assert refusal(at(kernels, "inner")).startswith(f"found no function 'inner' in {kernels}, wanted one of ")
    assert refusal(at(kernels, "plain")) == (
        f"found 'plain' at {kernels}:{lines['def plain(x): pass']} without a jit decorator, "
        "wanted a @triton.jit function"
    )
    assert refusal(at(kernels, "other_jit")).endswith(
        "without a jit decorator, wanted a @triton.jit function"
    )
    assert refusal(at(kernels, "star")) == (
        f"found *rest in 'star' at {kernels}:{lines['def star(x, *rest): pass']}, "
        "wanted every parameter by name"
    )
    assert refusal(at(kernels, "stars")).startswith("found **rest in 'stars' at ")
    twice = (lines["    def twice(a): pass"], lines["    def twice(b): pass"])
    assert refusal(at(kernels, "twice")) == (
        f"found 'twice' defined 2 times in {kernels} (lines {twice[0]} and {twice[1]}), wanted one definition"
    )


def test_files_that_are_no_kernels(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    assert refusal(at(path, "k")) == (
        f"found no such file or directory at {path}, wanted the Python file of source 'a.py:k'"
    )
    path.write_text("x = 1\n")
    assert refusal(at(path, "k")) == (
        f"found no function 'k' in {path}, wanted a @triton.jit function at the file's top level"
    )
    path.write_text("import triton\n\ndef k(:\n")
    assert refusal(at(path, "k")).startswith(f"found Python that does not parse at {path}:3 (")
    path.write_bytes(b"x = '\0'\n")
    assert refusal(at(path, "k")).startswith(f"found Python that does not parse at {path}")
    path.write_text("(" * 5000)
    assert refusal(at(path, "k")).startswith(f"found Python that does not parse at {path}")
    assert refusal(at(tmp_path, "k")) == (
        f"found is a directory at {tmp_path}, wanted the Python file of source '{tmp_path.name}:k'"
    )


def test_a_source_that_is_neither() -> None:
    nothing = Source(written="x", path=None, module=None, function="k")
    assert refusal(nothing) == "found source 'x', wanted a file or a module"


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    for names in ("a", "a, b"):
        path.write_text(f"@jit\ndef k({names}): pass\n")
        assert read_signature(at(path, "k")).names == tuple(names.split(", "))


def test_invalid_escapes_do_not_warn(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tmp_path / "a.py"
    path.write_text("P = '\\d'\n@jit\ndef k(a): pass\n")
    assert read_signature(at(path, "k")).names == ("a",)
    assert not recwarn.list


def test_the_bytes_of_a_source(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"# \xc3\xa9\r\n")
    assert hashlib.sha256(read_source(at(path, "k"))).digest() == hashlib.sha256(b"# \xc3\xa9\r\n").digest()


def test_other_encodings_of_source(tmp_path: Path) -> None:
    """Field case C25: a source's own encoding counts, not the locale."""
    path = tmp_path / "a.py"
    path.write_bytes("# coding: latin-1\n# é\n@jit\ndef k(a): pass\n".encode("latin-1"))
    assert read_signature(at(path, "k")).names == ("a",)
    path.write_bytes("X = 'é'\n@jit\ndef k(a): pass\n".encode("latin-1"))
    assert refusal(at(path, "k")).startswith(f"found Python that does not parse at {path}:1 (")


# Modules -------------------------------------------------------------------------------------

RUNS = "raise RuntimeError('this module ran')\n@jit\ndef k(a): pass\n"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "aot_t_single.py": RUNS,
        "aot_t_pkg/__init__.py": RUNS,
        "aot_t_pkg/sub/__init__.py": RUNS,
        "aot_t_pkg/sub/kernels.py": RUNS,
        "aot_t_pkg/sub/native.so": "",
        "aot_t_space/inner/kernels.py": RUNS,
        "second/aot_t_space/inner/more.py": RUNS,
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "second")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("aot_t_single", "aot_t_single.py"),
        ("aot_t_pkg", "aot_t_pkg/__init__.py"),
        ("aot_t_pkg.sub", "aot_t_pkg/sub/__init__.py"),
        ("aot_t_pkg.sub.kernels", "aot_t_pkg/sub/kernels.py"),
        ("aot_t_space.inner.kernels", "aot_t_space/inner/kernels.py"),
        ("aot_t_space.inner.more", "second/aot_t_space/inner/more.py"),
    ],
)
def test_modules_are_found_and_not_run(packages: Path, name: str, file: str) -> None:
    before = set(sys.modules)
    assert source_path(module(name)) == str(packages / file)
    assert read_signature(module(name)).names == ("a",)
    assert set(sys.modules) == before


def test_modules_that_are_not_there(packages: Path) -> None:
    assert refusal(module("aot_t_nothing.kernels")) == (
        "found no module 'aot_t_nothing' on Python's path, wanted the one of 'aot_t_nothing.kernels:k'; "
        "install it or set PYTHONPATH"
    )
    folder = packages / "aot_t_pkg" / "sub"
    assert refusal(module("aot_t_pkg.sub.kernel")) == (
        f"found no module 'kernel' in aot_t_pkg.sub ({folder}), wanted the one of 'aot_t_pkg.sub.kernel:k'; "
        "did you mean 'kernels'?"
    )
    assert refusal(module("aot_t_single.inner")) == (
        "found no module 'inner' in aot_t_single (not a package), wanted the one of 'aot_t_single.inner:k'"
    )
    assert refusal(module("aot_t_space.inner")) == (
        "found no Python source for module aot_t_space.inner (a package without __init__.py), "
        "wanted a .py file"
    )
    assert refusal(module("sys")).startswith("found no Python source for module sys (")


def test_triton_is_not_imported(kernels: Path) -> None:
    code = (
        "import sys\n"
        "from aot.build.specfile import load_specs\nfrom aot.build.signature import read_signature\n"
        "from aot.spec import Source\n"
        f"read_signature(Source(written='', path={str(kernels)!r}, module=None, function='every_kind'))\n"
        "print(sorted({'triton', 'torch', 'numpy', 'click'} & set(sys.modules)))\n"
    )
    repository = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_defaults_that_no_manifest_can_hold(tmp_path: Path) -> None:
    """JSON has no infinity and no integer of more than 64 bits: such a default is as if it were not there."""
    path = tmp_path / "kernels.py"
    path.write_text(
        "import triton\n\n\n@triton.jit\n"
        f"def f(a=1e999, b=-1e999, c={2**64}, d={2**64 - 1}, e=-{2**63 + 1}, f=-{2**63}): pass\n"
    )
    assert read_signature(at(path, "f")).defaults == {"d": 2**64 - 1, "f": -(2**63)}
