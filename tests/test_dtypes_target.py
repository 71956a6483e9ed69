"""The dtype table and the targets."""

from __future__ import annotations

import pytest

from aot.dtypes import ALIASES, DTYPES, parse_dtype
from aot.errors import TargetError, UsageError
from aot.target import KNOWN_TARGETS, MAX_GRID, Target

TORCH_DTYPES = (
    "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool float8_e4m3fn "
    "float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu complex32 complex64 complex128"
)


def test_the_table_has_every_dtype() -> None:
    assert " ".join(DTYPES) == TORCH_DTYPES


def test_names_and_sizes_are_torch_s() -> None:
    torch = pytest.importorskip("torch")
    for name, dtype in DTYPES.items():
        assert getattr(torch, name).itemsize == dtype.itemsize
        assert getattr(torch, name).is_complex == (dtype.kind == "complex")
        assert getattr(torch, name).is_floating_point == (dtype.kind == "float")
        assert dtype.lanes == (2 if dtype.kind == "complex" else 1)
        assert str(dtype) == name
    for alias, name in ALIASES.items():
        if hasattr(torch, alias):
            assert getattr(torch, alias) == getattr(torch, name)


def test_names_are_parsed_to_themselves() -> None:
    for name, dtype in DTYPES.items():
        assert parse_dtype(str(dtype)) is dtype
        assert parse_dtype(name) is dtype
    for alias, name in ALIASES.items():
        assert parse_dtype(alias) is DTYPES[name]


def test_a_wrong_name() -> None:
    with pytest.raises(UsageError) as caught:
        parse_dtype("flaot32")
    assert str(caught.value) == (
        f"found dtype 'flaot32', wanted one of {TORCH_DTYPES.replace(' ', ', ')}; did you mean 'float32'?"
    )


@pytest.mark.parametrize(
    ("name", "capability", "storage", "pointer"),
    [
        ("float32", 80, "native", "*fp32"),
        ("float32", 80, "bits", "*u32"),
        ("complex64", 80, "native", "*fp32"),
        ("complex64", 80, "bits", "*u32"),
        ("complex32", 80, "native", "*fp16"),
        ("bool", 80, "native", "*i1"),
        ("bool", 80, "bits", "*u8"),
        ("float8_e4m3fn", 89, "native", "*fp8e4nv"),
        ("float8_e4m3fn", 80, "auto", "*u8"),
        ("float8_e4m3fn", 90, "auto", "*fp8e4nv"),
        ("float8_e5m2", 80, "native", "*fp8e5"),
        ("float8_e5m2fnuz", 90, "auto", "*u8"),
        ("float8_e8m0fnu", 90, "bits", "*u8"),
    ],
)
def test_pointers(name: str, capability: int, storage: str, pointer: str) -> None:
    assert DTYPES[name].pointer(capability, storage) == pointer  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("float8_e4m3fn",
         "found float8_e4m3fn for a pointer on capability 8.0, but it needs capability 8.9 or newer; wanted "
         "another dtype or target, or 'storage: auto' with a kernel that decodes u8"),
        ("float8_e4m3fnuz",
         "found float8_e4m3fnuz for a pointer on capability 8.0, but Triton has no such type on NVIDIA GPUs; "
         "wanted another dtype or target, or 'storage: auto' with a kernel that decodes u8"),
    ],
)  # fmt: skip
def test_dtypes_that_a_target_does_not_have(name: str, message: str) -> None:
    """Field case B13: refused by target and dtype, in the user's spelling."""
    with pytest.raises(UsageError) as caught:
        DTYPES[name].pointer(80)
    assert str(caught.value) == message


# Targets -------------------------------------------------------------------------------------


def test_every_target_prints_to_itself() -> None:
    for name in KNOWN_TARGETS:
        target = Target.parse(name)
        assert str(target) == name
        assert Target.parse(name.removeprefix("sm_")) == target
        assert Target.parse(target.dotted + "a" * target.specific) == target
        assert target.max_shared >= 64 * 1024
    assert len({Target.parse(name) for name in KNOWN_TARGETS}) == len(KNOWN_TARGETS)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sm_90", "sm_90"),
        ("sm_90a", "sm_90a"),
        ("90", "sm_90"),
        ("90a", "sm_90a"),
        ("9.0", "sm_90"),
        ("9.0a", "sm_90a"),
        ("8.9", "sm_89"),
        ("sm_8.0", "sm_80"),
        ("12.0", "sm_120"),
        ("103a", "sm_103a"),
    ],
)
def test_accepted_spellings(text: str, name: str) -> None:
    """Field case B10."""
    assert str(Target.parse(text)) == name


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("sm_090", "; did you mean 'sm_90'?"),
        ("sm_9O", "; did you mean 'sm_90'?"),
        ("sm_999", "; did you mean 'sm_90'?"),
        ("sm_90A", "; did you mean 'sm_90a'?"),
        ("sm90", "; did you mean 'sm_90'?"),
        ("SM_90", "; did you mean 'sm_90'?"),
        ("compute_90", "; did you mean 'sm_90'?"),
        ("sm_80a", "; did you mean 'sm_80'?"),
        ("sm_90 ", "; did you mean 'sm_90'?"),
        ("sm_90\n", "; did you mean 'sm_90'?"),
        ("sm_\uff19\uff10", "; did you mean 'sm_90'?"),
        ("9.0;12.0", ""),
        ("", ""),
    ],
)
def test_refused_spellings(text: str, hint: str) -> None:
    """Field case B10: refused with the nearest valid name."""
    with pytest.raises(TargetError) as caught:
        Target.parse(text)
    message = str(caught.value)
    assert message.startswith(f"found target {text!r}, wanted one of {', '.join(KNOWN_TARGETS)}")
    if hint:
        assert message.endswith(hint)


@pytest.mark.parametrize(
    ("name", "capability", "reason"),
    [
        ("sm_90", 90, None),
        ("sm_90a", 90, None),
        ("sm_80", 86, None),
        ("sm_80", 89, None),
        ("sm_86", 80, "sm_86 needs capability 8.6 or newer, the device is 8.0"),
        ("sm_80", 90, "sm_80 runs on capability 8.x only, the device is 9.0"),
        ("sm_90", 100, "sm_90 runs on capability 9.x only, the device is 10.0"),
        ("sm_90a", 100, "sm_90a runs on capability 9.0 only, the device is 10.0"),
        ("sm_90", 120, "sm_90 runs on capability 9.x only, the device is 12.0"),
        ("sm_100a", 103, "sm_100a runs on capability 10.0 only, the device is 10.3"),
        ("sm_100", 103, None),
    ],
)
def test_which_devices_run_a_target(name: str, capability: int, reason: str | None) -> None:
    """Field case B10: "a" targets match exactly, plain ones follow the family rule."""
    assert Target.parse(name).reject_reason(capability) == reason


def test_the_larger_target_is_the_better() -> None:
    names = ["sm_90", "sm_80", "sm_90a", "sm_86"]
    ranked = sorted(names, key=lambda name: Target.parse(name).preference())
    assert ranked == ["sm_80", "sm_86", "sm_90", "sm_90a"]
    assert sorted(names, key=Target.parse) == ranked


def test_grid_limits() -> None:
    assert MAX_GRID == (2147483647, 65535, 65535)
