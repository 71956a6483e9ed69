"""Planning: what is enumerated, in which order, what is refused, and which holes are named."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelfolder import SCALE_PY, SCALE_YAML, scale_folder, write

from aot.build.coverage import plan_holes
from aot.build.plan import Plan, make_plan
from aot.build.specfile import load_specs
from aot.errors import SpecError, UsageError
from aot.manifest import ConstexprArg, PointerArg, ScalarArg
from aot.target import Target

BUCKETS = "dtype: [float32]\n  n: {{buckets: [{}]}}"


def plan_of(folder: Path, *targets: str, **filters: list[str]) -> Plan:
    """The plan of every spec in a folder."""
    return make_plan(load_specs([folder]), [Target.parse(t) for t in targets], filters)


def test_variants_come_in_the_order_of_selection(tmp_path: Path) -> None:
    """Axes as written, then the strictest claims first: fast variants stand before general ones."""
    plan = plan_of(scale_folder(tmp_path))
    found = [(v.variant.axes["dtype"], v.variant.args[0]) for v in plan.variants]
    assert [(dtype, arg.align) for dtype, arg in found if isinstance(arg, PointerArg)] == [
        ("float32", 16), ("float32", 1), ("float64", 16), ("float64", 1),
    ]  # fmt: skip


def test_jobs_are_plain_sorted_and_distinct(tmp_path: Path) -> None:
    """Jobs survive pickling, hash, and are the same tuple for the same plan."""
    first, second = plan_of(scale_folder(tmp_path)), plan_of(tmp_path)
    assert first.jobs == second.jobs
    assert list(first.jobs) == sorted(first.jobs, key=lambda job: job.key)
    assert pickle.loads(pickle.dumps(first.jobs)) == first.jobs
    assert len({hash(job) for job in first.jobs}) == len(first.jobs) == 4


def test_float_scalar_has_the_kernels_type(tmp_path: Path) -> None:
    """Field cases A18 and B23: fp64 stays fp64 in the signature."""
    plan = plan_of(scale_folder(tmp_path))
    types = {dict(job.signature)["x_ptr"]: dict(job.signature)["factor"] for job in plan.jobs}
    assert types == {"*fp32": "fp32", "*fp64": "fp64"}


def test_constants_and_claims_stay_apart(tmp_path: Path) -> None:
    """Field case B22: no constexpr is claimed divisible, 1 is a constexpr, 16 is not."""
    yaml = SCALE_YAML.replace("n: {int: int32}", "n: {int: int32, specialize: [1, 16, any]}")
    plan = plan_of(write(tmp_path, scale_py=SCALE_PY, scale_yaml=yaml))
    assert len(plan.variants) == 12
    for job in plan.jobs:
        constants = {name for name, _ in job.constexprs}
        assert not constants & set(job.divisible)
        assert all(
            (dict(job.signature)[name] == "constexpr") == (name in constants) for name, _ in job.signature
        )
    ones = [job for job in plan.jobs if ("n", 1) in job.constexprs]
    assert len(ones) == 4


@pytest.mark.parametrize(("one", "other"), [("1", "1.0"), ("1", "true"), ("1.0", "true")])
def test_equal_constexprs_of_different_types_are_different_jobs(tmp_path: Path, one: str, other: str) -> None:
    """Field case B15: 1, 1.0 and True are three values."""
    keys = []
    for value in (one, other):
        yaml = SCALE_YAML.replace("{constexpr: 256}", f"{{constexpr: {value}}}")
        yaml = yaml.replace('grid: ["cdiv(n, BLOCK)"], ', "")
        keys.append({job.key for job in plan_of(write(tmp_path, scale_py=SCALE_PY, scale_yaml=yaml)).jobs})
    assert not keys[0] & keys[1]


def test_fp8_on_an_old_target_is_refused_in_the_users_words(tmp_path: Path) -> None:
    """Field case B13: float8_e4m3fn × sm_80 is reported, the rest is planned."""
    yaml = SCALE_YAML.replace("[float32, float64]", "[float8_e4m3fn, float8_e5m2]").replace(
        "{float: $dtype}", "{float: float32}"
    )
    plan = plan_of(write(tmp_path, scale_py=SCALE_PY, scale_yaml=yaml), "sm_80", "sm_89", "sm_90")
    assert [(r.target, r.axes["dtype"]) for r in plan.refused] == [("sm_80", "float8_e4m3fn")]
    assert plan.refused[0].reason == (
        "found float8_e4m3fn for a pointer on capability 8.0, but it needs capability 8.9 or newer; "
        "wanted another dtype or target, or 'storage: auto' with a kernel that decodes u8"
    )
    assert len(plan.variants) == 2 * (1 + 2 + 2)


def test_grid_limit_is_checked_at_the_buckets_bound(tmp_path: Path) -> None:
    """Field case B17: a bucket that needs more than 65535 programs on y is refused while planning."""
    yaml = SCALE_YAML.replace(
        "dtype: [float32, float64]", "dtype: [float32]\n  n: {buckets: [65535, 262144]}"
    )
    yaml = yaml.replace('["cdiv(n, BLOCK)"]', '[1, "n"]')
    plan = plan_of(write(tmp_path, scale_py=SCALE_PY, scale_yaml=yaml))
    assert [r.reason for r in plan.refused] == [
        "grid y 'n' is 262144 at the bucket's bound, wanted at most 65535; "
        "put the large extent on x, or lower the bound"
    ]


def test_filters_keep_and_name_what_they_do_not_know(tmp_path: Path) -> None:
    """A filter keeps variants; an unknown key or value names the nearest."""
    scale_folder(tmp_path)
    assert len(plan_of(tmp_path, dtype=["float64"]).variants) == 2
    with pytest.raises(UsageError, match=r"^found filter 'dtyp', wanted one of .*; did you mean 'dtype'\?$"):
        plan_of(tmp_path, dtyp=["float64"])
    with pytest.raises(UsageError, match=r"^found dtype='float63', wanted one of float32, float64; did you"):
        plan_of(tmp_path, dtype=["float63"])


def test_a_value_that_a_combination_lacks_is_a_fault_of_the_spec(tmp_path: Path) -> None:
    """An unbounded bucket has no number to compute with."""
    yaml = SCALE_YAML.replace("dtype: [float32, float64]", "dtype: [float32]\n  n: {buckets: [64, any]}")
    yaml = yaml.replace("{constexpr: 256}", "{constexpr: next_power_of_2($n)}")
    write(tmp_path, scale_py=SCALE_PY, scale_yaml=yaml)
    wanted = r":13:22: found the axis \$n, whose bucket 'any' has no number, wanted a table \{by: n, …\}$"
    with pytest.raises(SpecError, match=wanted):
        plan_of(tmp_path)


def test_holes_are_named(tmp_path: Path) -> None:
    """An aligned-only pointer, a claimed integer and a bounded bucket each leave a hole."""
    scale_folder(tmp_path)
    assert not list(plan_holes(plan_of(tmp_path).kernels))
    cases = {
        "align: [16, 1]": ("align: 16", "x_ptr at an address that is no multiple of 16"),
        "n: {int: int32}": ("n: {int: int32, specialize: [1, 16]}", "n other than 1"),
        "dtype: [float32, float64]": ("dtype: [float32]\n  n: {buckets: [64, 256]}", "n over 256"),
    }
    for old, (new, what) in cases.items():
        write(tmp_path, scale_yaml=SCALE_YAML.replace(old, new))
        found = list(plan_holes(plan_of(tmp_path).kernels))
        assert found, new
        assert all(what in h.what for h in found), found


def test_a_fast_class_leaves_the_rest_to_its_general_kernel(tmp_path: Path) -> None:
    """What one kernel does not take is no hole where the kernel it names serves that op and dtype."""
    fast = SCALE_YAML.replace("kernel: scale", "kernel: fast\ngeneral: scale").replace("[16, 1]", "16")
    slow = SCALE_YAML.replace("[float32, float64]", "[float32]")
    write(tmp_path, scale_py=SCALE_PY, fast_yaml=fast, scale_yaml=slow)
    assert [(h.kernel, h.dtype) for h in plan_holes(plan_of(tmp_path).kernels)] == [("fast", "float64")]
    write(tmp_path, fast_yaml=fast.replace("general: scale", "general: scales"))
    wanted = r"fast.yaml:4:10: found the general kernel 'scales', wanted one of fast, scale; did you mean"
    with pytest.raises(SpecError, match=wanted):
        plan_of(tmp_path)


def test_an_excluded_bucket_is_a_hole(tmp_path: Path) -> None:
    """What an exclude takes away is named: the largest bucket of one dtype only."""
    yaml = SCALE_YAML.replace(
        "dtype: [float32, float64]", "dtype: [float32, float64]\n  n: {buckets: [64, any]}"
    )
    yaml += 'exclude: [{dtype: float64, n: any, why: "spills"}]\n'
    write(tmp_path, scale_py=SCALE_PY, scale_yaml=yaml)
    found = list(map(str, plan_holes(plan_of(tmp_path).kernels)))
    assert found == ["scale float64 on sm_90a: no variant for n over 64"]


@settings(max_examples=60, deadline=None)
@given(
    aligns=st.lists(st.sampled_from([16, 1]), min_size=1, max_size=2, unique=True),
    claims=st.lists(st.sampled_from(["1", "16", "any"]), min_size=1, max_size=3, unique=True),
    bounds=st.lists(st.integers(1, 2000), min_size=1, max_size=3, unique=True),
    unbounded=st.booleans(),
    n=st.integers(1, 5000),
    address=st.sampled_from([0, 16, 8, 1]),
)
def test_a_spec_without_holes_takes_every_input(
    tmp_path_factory: pytest.TempPathFactory,
    aligns: list[int],
    claims: list[str],
    bounds: list[int],
    unbounded: bool,
    n: int,
    address: int,
) -> None:
    """Where no hole is named, some variant's claims and bounds hold for any address and extent."""
    folder = tmp_path_factory.mktemp("spec")
    buckets = [*map(str, sorted(bounds)), *(["any"] if unbounded else [])]
    yaml = SCALE_YAML.replace(
        "dtype: [float32, float64]", f"dtype: [float32]\n  n: {{buckets: [{', '.join(buckets)}]}}"
    )
    yaml = yaml.replace("align: [16, 1]", f"align: {aligns}").replace(
        "n: {int: int32}", f"n: {{int: int32, specialize: [{', '.join(claims)}]}}"
    )
    plan = plan_of(write(folder, scale_py=SCALE_PY, scale_yaml=yaml))
    if list(plan_holes(plan.kernels)):
        return

    def takes(args: tuple[object, ...], limits: tuple[int, ...]) -> bool:
        pointer, scalar = args[0], args[2]
        assert isinstance(pointer, PointerArg)
        assert isinstance(scalar, ScalarArg)
        assert isinstance(args[4], ConstexprArg)
        claimed = scalar.claim == "any" or (n % int(scalar.claim) == 0 and (scalar.claim != "1" or n == 1))
        return (pointer.align == 1 or address % 16 == 0) and claimed and all(n <= limit for limit in limits)

    assert any(takes(v.variant.args, tuple(b.max for b in v.variant.bounds)) for v in plan.variants)
