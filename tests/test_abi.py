"""The ABI check: what a cubin records of itself against what a manifest says of it."""

from __future__ import annotations

import random

import pytest
from bundlemaker import cubin, param_records, pointer, scalar, variant
from kernelfolder import scale_folder
from msgspec.structs import replace

from aot.build import abi
from aot.build.plan import make_plan
from aot.build.run import build
from aot.build.specfile import load_specs
from aot.errors import AotError, BuildError
from aot.manifest import Binary, Variant
from aot.reader import BundleReader

Real = tuple[Variant, Binary, bytes]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    """A variant, its binary and its cubin from the compiler."""
    folder = tmp_path_factory.mktemp("abi")
    plan = make_plan(load_specs([scale_folder(folder / "k")]), [], {"dtype": ["float32"]})
    build(plan, folder / "b", workers=1)
    with BundleReader(folder / "b") as reader:
        (ref, *_) = reader.manifest.kernels[0].tables
        entry = reader.table(ref)[0]
        return entry.variant, entry.binary, reader.cubin(ref.target, entry.binary.cubin)


def test_a_real_cubin(real: Real) -> None:
    """Field case B01: two pointers, an int, a float, and the hidden pointers behind them."""
    chosen, binary, data = real
    info = abi.read_cubin(data, binary.symbol)
    assert [size for _, size in info.params][:4] == [8, 8, 4, 4]
    assert set(info.params[4:]) <= {(24, 8), (32, 8)}
    assert 0 < info.registers <= 255
    abi.check_binary(chosen, binary, data)


def test_a_manifest_that_claims_other_warps(real: Real) -> None:
    """Launching with another block than the kernel was compiled for would fail, or compute nonsense."""
    chosen, binary, data = real
    wrong = replace(chosen, options=replace(chosen.options, num_warps=8))
    with pytest.raises(BuildError, match=r"^found blocks of 128 threads in the cubin, wanted 256 "):
        abi.check_binary(wrong, binary, data)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            (pointer("x"), scalar("n", "i64")),
            "found parameters of [8, 4, 8, 8] bytes in the cubin, wanted [8, 8] and at most two hidden "
            "pointers, for (x: *float32, n: i64)",
        ),
        (
            (pointer("x"), scalar("n"), scalar("m"), pointer("y"), pointer("z")),
            "found parameters of [8, 4, 8, 8] bytes in the cubin, wanted [8, 4, 4, 8, 8] and at most two "
            "hidden pointers, for (x: *float32, n: i32, m: i32, y: *float32, z: *float32)",
        ),
        (
            (pointer("x"),),
            "found parameters of [8, 4, 8, 8] bytes in the cubin, wanted [8] and at most two hidden "
            "pointers, for (x: *float32)",
        ),
    ],
)
def test_another_signature(args: tuple[object, ...], message: str) -> None:
    """Field cases B03 and B06: a width, a lost argument, one too many."""
    built = param_records(variant(pointer("x"), scalar("n")))
    info = abi.CubinInfo(params=tuple(built), threads=128, registers=1, local=0)
    with pytest.raises(BuildError) as caught:
        abi.check_abi(variant(*args), info)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_integers_compiled_in_are_no_parameters() -> None:
    """Field case B03: an argument that is 1 is gone from the cubin, and from what is wanted of it."""
    chosen = variant(pointer("x"), scalar("stride", claim="1"), scalar("n", "i64", claim="16"))
    assert abi.expected_params(chosen) == (8, 8)


def test_what_is_no_cubin() -> None:
    whole = cubin("k", [(0, 8)])
    for data in (b"", b"\x7fELF", whole[:100], whole):
        with pytest.raises(
            BuildError, match=r"^(the cubin is not one that can be read|found no \.nv\.info\.k )"
        ):
            abi.read_cubin(data, "k")


def test_damaged_cubins_are_typed_errors(real: Real) -> None:
    """Whatever an ELF header says of offsets and sizes: it is read, or it is a ``BuildError``."""
    _, binary, data = real
    chance = random.Random(20260101)
    headers = [*range(64), *range(len(data) - 2000, len(data))]
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 8))):
            damaged[chance.choice(headers)] = chance.randrange(256)
        try:
            abi.read_cubin(bytes(damaged), binary.symbol)
        except AotError as error:
            assert isinstance(error, BuildError)  # noqa: PT017
