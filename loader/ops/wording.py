"""torch's own words for what is wrong with a call, so that existing handlers and tests fit.

Checked against torch 2.13. Dtypes are named as torch names them.
"""

from __future__ import annotations

# Keyed by torch's Python name: c10's name of the scalar type, then C++'s name of the type.
_NAMES: dict[str, tuple[str, str]] = {
    "float16": ("Half", "c10::Half"),
    "bfloat16": ("BFloat16", "c10::BFloat16"),
    "float32": ("Float", "float"),
    "float64": ("Double", "double"),
    "int8": ("Char", "signed char"),
    "int16": ("Short", "short int"),
    "int32": ("Int", "int"),
    "int64": ("Long", "long int"),
    "uint8": ("Byte", "unsigned char"),
    "uint16": ("UInt16", "short unsigned int"),
    "uint32": ("UInt32", "unsigned int"),
    "uint64": ("UInt64", "long unsigned int"),
    "bool": ("Bool", "bool"),
    "float8_e4m3fn": ("Float8_e4m3fn", "c10::Float8_e4m3fn"),
    "float8_e5m2": ("Float8_e5m2", "c10::Float8_e5m2"),
    "float8_e4m3fnuz": ("Float8_e4m3fnuz", "c10::Float8_e4m3fnuz"),
    "float8_e5m2fnuz": ("Float8_e5m2fnuz", "c10::Float8_e5m2fnuz"),
    "float8_e8m0fnu": ("Float8_e8m0fnu", "c10::Float8_e8m0fnu"),
    "complex32": ("ComplexHalf", "c10::complex<c10::Half>"),
    "complex64": ("ComplexFloat", "c10::complex<float>"),
    "complex128": ("ComplexDouble", "c10::complex<double>"),
}


def scalar_name(dtype: str) -> str:
    """c10's name of a dtype, such as ``Long`` for int64; an unknown dtype keeps its own."""
    return _NAMES[dtype][0] if dtype in _NAMES else dtype


def _cpp_name(dtype: str) -> str:
    return _NAMES[dtype][1] if dtype in _NAMES else dtype


def dim_range(dim: int, ndim: int) -> str:
    bound = max(ndim, 1)
    return f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], but got {dim})"


def dim_repeated(dim: int) -> str:
    return f"dim {dim} appears multiple times in the list of dims"


def dims_too_many() -> str:
    return "only tensors with up to 64 dims are supported"


def empty_dim(name: str, dim: int) -> str:
    return f"{name}(): Expected reduction dim {dim} to have non-zero size."


def empty_all(name: str) -> str:
    first = f"{name}(): Expected reduction dim to be specified for input.numel() == 0."
    if name.startswith("arg"):
        return first
    return first + " Specify the reduction dim with the 'dim' argument."


def mean_dtype(which: str, dtype: str) -> str:
    return (
        f"mean(): could not infer output dtype. {which} dtype must be either a floating point "
        f"or complex dtype. Got: {scalar_name(dtype)}"
    )


def out_dtype(wanted: str, found: str) -> str:
    return f"Expected out tensor to have dtype {_cpp_name(wanted)}, but got {_cpp_name(found)} instead"


def out_cast(wanted: str, found: str) -> str:
    return f"result type {scalar_name(wanted)} can't be cast to the desired output type {scalar_name(found)}"


def out_matches_input(input_dtype: str, found: str) -> str:
    return (
        f"Expected the dtype for input and out to match, but got {scalar_name(input_dtype)} for "
        f"input's dtype and {scalar_name(found)} for out's dtype."
    )


def out_truth(name: str, found: str) -> str:
    return f"{name} only supports bool tensor for result, got: {scalar_name(found)}"


def out_device(wanted: object, found: object) -> str:
    return f"Expected out tensor to have device {wanted}, but got {found} instead"


def out_needs_grad(name: str) -> str:
    return (
        f"{name}(): functions with out=... arguments don't support automatic differentiation, "
        "but one of the arguments requires grad."
    )


def out_resized(found: list[int], wanted: list[int]) -> str:
    return (
        "An output with one or more elements was resized since it had shape "
        f"{found}, which does not match the required output shape {wanted}. This behavior is "
        "deprecated, and in a future PyTorch release outputs will not be resized unless they have "
        "zero elements. You can explicitly reuse an out tensor t by resizing it, inplace, to zero "
        "elements with t.resize_(0)."
    )


def out_overlaps_itself() -> str:
    return (
        "unsupported operation: more than one element of the written-to tensor refers to a single "
        "memory location. Please clone() the tensor before performing the operation."
    )


def not_implemented(kernel: str, dtype: str) -> str:
    return f'"{kernel}" not implemented for {scalar_name(dtype)!r}'


def no_complex(name: str) -> str:
    return f"{name}(): does not support complex input"
