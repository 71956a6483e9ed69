"""The operations as a table, and the dtypes each one computes in. Pure: dtypes are names.

The kernels exist for these (input, output) pairs:

* sum, prod: f16, bf16 and fp8 to themselves and to float32; float32, float64, complex64,
  complex128 to themselves; complex32 to itself and to complex64; integers and bool to int64;
* any, all: every dtype to bool, uint8 to uint8;
* amax, amin, argmax, argmin: every dtype but the complex ones, to itself.

Any other pair is a conversion before the kernel, as in ATen, or a narrowing after it.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from aot.dtypes import DTYPES

Family = Literal["sum", "extremum", "truth", "index"]


class Op(Struct, frozen=True, kw_only=True):
    """One public function.

    ``code`` is the ``OP`` of its kernel. ``family`` groups what shares dtype rules.
    ``mean``: the kernel divides by the number of elements. ``differentiable``: torch gives
    its result a gradient. ``lists``: ``dim`` may be several dimensions. ``empty_list_keeps``:
    ``dim=[]`` reduces nothing (torch does this for any and all); otherwise it means all.
    """

    name: str
    code: str
    family: Family
    mean: bool = False
    differentiable: bool = True
    lists: bool = True
    empty_list_keeps: bool = False


SUM = Op(name="sum", code="sum", family="sum")
MEAN = Op(name="mean", code="sum", family="sum", mean=True)
PROD = Op(name="prod", code="prod", family="sum", lists=False)
AMAX = Op(name="amax", code="amax", family="extremum")
AMIN = Op(name="amin", code="amin", family="extremum")
MAX_ALL = Op(name="max", code="amax", family="extremum", lists=False)
MIN_ALL = Op(name="min", code="amin", family="extremum", lists=False)
MAX_DIM = Op(name="max", code="argmax", family="index", lists=False)
MIN_DIM = Op(name="min", code="argmin", family="index", lists=False)
ARGMAX = Op(name="argmax", code="argmax", family="index", differentiable=False, lists=False)
ARGMIN = Op(name="argmin", code="argmin", family="index", differentiable=False, lists=False)
ANY = Op(name="any", code="any", family="truth", differentiable=False, empty_list_keeps=True)
ALL = Op(name="all", code="all", family="truth", differentiable=False, empty_list_keeps=True)

LAYOUTS = ("rows", "cols", "strided")

_OPS = (SUM, MEAN, PROD, AMAX, AMIN, MAX_ALL, MIN_ALL, MAX_DIM, MIN_DIM, ARGMAX, ARGMIN, ANY, ALL)
PUBLIC = tuple(sorted({op.name for op in _OPS}))
"""The names of the public functions."""


def kernel_name(op: Op, layout: str) -> str:
    """The kernel that computes ``op`` in one of :data:`LAYOUTS`."""
    return f"{'argreduce' if op.family == 'index' else 'reduce'}_{layout}"


def kernels_of(name: str) -> dict[str, frozenset[str]]:
    """The kernels that the public function ``name`` may launch, each with the ``OP`` of its variants."""
    found: dict[str, frozenset[str]] = {}
    for op in _OPS:
        for layout in LAYOUTS if op.name == name else ():
            kernel = kernel_name(op, layout)
            found[kernel] = found.get(kernel, frozenset()) | {op.code}
    return found


class Types(Struct, frozen=True, kw_only=True):
    """The dtypes of one call.

    The input is converted to ``cast`` first (None: it is not); the kernel is specialised by
    ``code``, ``dtype`` and ``out``; what it wrote is converted to ``final``.
    """

    code: str
    cast: str | None
    dtype: str
    out: str
    final: str


def is_integral(dtype: str) -> bool:
    """Whether ``dtype`` is an integer or bool."""
    return DTYPES[dtype].kind in ("int", "uint", "bool")


def default_result(op: Op, dtype: str) -> str:
    """The dtype of the result where the caller names none. An index result is always int64."""
    if op.family == "truth":
        return "uint8" if dtype == "uint8" else "bool"
    if op.family == "sum" and is_integral(dtype):
        return "int64"
    return dtype


def resolve(op: Op, dtype: str, result: str) -> Types:
    """Return how ``op`` turns an input of ``dtype`` into a result of ``result``."""
    if op.family == "truth":
        return _truth(op.code, dtype, result)
    if op.family in ("extremum", "index"):
        return Types(code=op.code, cast=None, dtype=dtype, out=dtype, final=result)
    if result == "bool":
        return _truth("any" if op.code == "sum" else "all", dtype, result)
    if is_integral(result):
        # Wrapping commutes with sums and products, so narrowing last gives what ATen gets
        # by narrowing first. A float or complex input has to be converted first.
        source = dtype if is_integral(dtype) else result
        cast = None if source == dtype else source
        return Types(code=op.code, cast=cast, dtype=source, out="int64", final=result)
    if dtype == result or (dtype, result) in _WIDENING:
        return Types(code=op.code, cast=None, dtype=dtype, out=result, final=result)
    return Types(code=op.code, cast=result, dtype=result, out=result, final=result)


def _truth(code: str, dtype: str, result: str) -> Types:
    out = "uint8" if dtype == "uint8" else "bool"
    return Types(code=code, cast=None, dtype=dtype, out=out, final=result)


_WIDENING = {(d.name, "float32") for d in DTYPES.values() if d.kind == "float" and d.itemsize < 4} | {
    ("complex32", "complex64")
}


def accumulator(code: str, dtype: str) -> str:
    """The dtype of the partial results that the kernel ``code`` keeps for inputs of ``dtype``."""
    kind = DTYPES[dtype].kind
    if code in ("any", "all"):
        return "int32"
    # Sums and products of what is as wide as the result accumulate in something wider.
    wide = ("float64", "float32") if code in ("sum", "prod") else ("float64",)
    if kind == "float":
        return "float64" if dtype in wide else "float32"
    if kind == "complex":
        return "complex64" if dtype == "complex32" else "complex128"
    if code in ("sum", "prod"):
        return "int64"
    if dtype in ("uint32", "int64"):
        return "int64"
    return "uint64" if dtype == "uint64" else "int32"
