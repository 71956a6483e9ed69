"""``aot.ops`` by the native launcher and by Python: one meaning, and proof of who served.

Every script runs twice, with and without the native launcher, and has to give the same answer and
the same launches, byte for byte but for addresses.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cputensors import Both, make_both

pytest.importorskip("aot.loader._native")


def test_what_a_call_is_remembered_by(driver: Path, reductions: Path) -> None:
    """Each call three times: the first prepares, the others are served natively, if they may be."""
    result: Both = make_both(driver)(
        """
        import numpy
        x = tag("x", at(0, 6, 40))
        cases = {
            "positional": (x, (1,), {}),
            "negative": (x, (-1,), {}),
            "keyword": (x, (), {"dim": 1}),
            "keyword, built": (x, (), {"".join(["di", "m"]): 1}),
            "tuple": (x, ((1,),), {}),
            "list": (x, ([1],), {}),
            "two dims, tuple": (x, ((0, 1),), {}),
            "two dims, list": (x, ([1, 0],), {}),
            "no dims, list": (x, ([],), {}),
            "none": (x, (None,), {}),
            "all": (x, (), {}),
            "keepdim": (x, (1, True), {}),
            "keepdim, named": (x, (1,), {"keepdim": True}),
            "order": (x, (), {"keepdim": True, "dim": 1}),
            "other order": (x, (), {"dim": 1, "keepdim": True}),
            "no keepdim": (x, (1, False), {}),
            "keepdim is 1": (x, (1, 1), {}),
            "keepdim is None": (x, (1, None), {}),
            "dim is True": (x, (True,), {}),
            "dim is 1.0": (x, (1.0,), {}),
            "dim is a string": (x, ("1",), {}),
            "dim of numpy": (x, (numpy.int64(1),), {}),
            "dims of numpy": (x, ((numpy.int64(1),),), {}),
            "dim of True": (x, ((True,),), {}),
            "huge dim": (x, (2**70,), {}),
            "repeated": (x, ((1, 1),), {}),
            "out of range": (x, (2,), {}),
            "dtype": (x, (1,), {"dtype": torch.float32}),
            "dtype, half": (x, (1,), {"dtype": torch.float16}),
            "dtype of Python": (x, (1,), {"dtype": float}),
            "dtype is None": (x, (1,), {"dtype": None}),
            "no such keyword": (x, (1,), {"axis": 1}),
            "too many": (x, (1, False, None, None), {}),
            "input, named": (x, (), {"input": x}),
            "half": (tag("half", at(0, 6, 40, dtype=torch.float16)), (1,), {}),
            "int8": (tag("int8", at(0, 6, 40, dtype=torch.int8)), (1,), {}),
            "int64": (tag("int64", at(0, 6, 40, dtype=torch.int64)), (1,), {}),
            "bool": (tag("bool", at(0, 6, 40, dtype=torch.bool)), (1,), {}),
            "uint8": (tag("uint8", at(0, 6, 40, dtype=torch.uint8)), (1,), {}),
            "complex": (tag("complex", at(0, 6, 40, dtype=torch.complex64)), (1,), {}),
            "no such kernel": (tag("double", at(0, 6, 40, dtype=torch.float64)), (1,), {}),
            "int4": (at(0, 6, 40, dtype=torch.int8).view(torch.int4), (1,), {}),
            "uint4": (at(0, 6, 40, dtype=torch.uint8).view(torch.uint4), (1,), {}),
            "other shape": (tag("y", at(0, 8, 30)), (1,), {}),
            "transposed": (tag("t", at(0, 40, 6)).t(), (1,), {}),
            "sliced": (tag("sliced", at(0, 6, 80))[:, :40], (1,), {}),
            "expanded": (tag("e", at(0, 6, 1)).expand(6, 40), (1,), {}),
            "misaligned": (tag("mis", at(1, 6, 40)), (1,), {}),
            "wide": (tag("wide", at(0, 4, 4096)), (1,), {}),
            "wide, misaligned": (tag("widemis", at(1, 4, 4096)), (1,), {}),
            "columns": (tag("columns", at(0, 64, 512)), (0,), {}),
            "columns, misaligned": (tag("colmis", at(1, 64, 512)), (0,), {}),
            "split": (tag("split", at(0, 1 << 18)), (), {}),
            "split, two": (tag("split2", at(0, 2, 1 << 17)), (1,), {}),
            "no dimensions": (tag("scalar", at(0, 1)).view(()), (), {}),
            "no dimensions, 0": (tag("scalar0", at(0, 1)).view(()), (0,), {}),
            "odd strides": (tag("odd", at(0, 6, 40)).as_strided((6, 1, 40), (40, 7777, 1)), (2,), {}),
            "other odd strides": (tag("odd2", at(0, 6, 40)).as_strided((6, 1, 40), (40, 1, 1)), (2,), {}),
            "many dims": (tag("many", at(0, 2, 2, 2, 2, 2, 2)), ((0, 2, 4),), {}),
            "copied": (tag("copied", at(0, 2, 3, 2, 3, 2, 3, 2, 3)).permute(1, 7, 3, 5, 0, 2, 4, 6),
                       ((0, 2, 5, 7),), {}),
            "a parameter": (tag("p", torch.nn.Parameter(at(0, 6, 40), requires_grad=False)), (1,), {}),
            "a list": ([1.0, 2.0], (), {}),
            "none at all": (None, (), {}),
        }
        values, served = {}, {}
        for what, (tensor, args, kwargs) in cases.items():
            for name in ("sum", "max", "argmin", "any"):
                function = getattr(ops, name)
                before = served_natively(name)
                values[f"{name}, {what}"] = [
                    outcome(f"{name}, {what}, {i}", function, tensor, *args, **kwargs) for i in range(3)]
                served[f"{name}, {what}"] = served_natively(name) - before
        values["nothing"] = outcome("", ops.sum)
        finish(values, **served)
        """,
        reductions,
        ops=True,
    )
    for case in (what.removeprefix("sum, ") for what in result.served if what.startswith("sum, ")):
        # Another spelling of a call before is served at once.
        assert result.served[f"sum, {case}"] in ((0,) if case in NEVER else (2, 3)), case
    assert result.served["max, positional"] == result.served["any, bool"] == 2
    assert result.served["argmin, positional"] >= 2
    one, two = (result.value[f"sum, {case}"][1] for case in ("misaligned", "positional"))
    assert one == two


# Calls of sum that fail, convert, copy, or hold what only Python reads.
NEVER = (
    *("keepdim is 1", "keepdim is None", "dim is True", "dim is 1.0", "dim is a string", "dim of numpy"),
    *("dims of numpy", "dim of True", "huge dim", "repeated", "out of range", "dtype, half"),
    *("dtype of Python", "no such keyword", "too many", "input, named", "no such kernel", "int4", "uint4"),
    *("copied", "a list", "none at all"),
)


def test_tensors_that_python_has_to_see(driver: Path, reductions: Path) -> None:
    """A plain call was served natively before each; these all take the way through Python."""
    result: Both = make_both(driver)(
        """
        import torch.autograd.forward_ad as fwd
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch._subclasses.fake_tensor import FakeTensorMode

        x = tag("x", at(0, 6, 40))
        c = tag("c", at(0, 6, 40, dtype=torch.complex64))
        for tensor in (x, c, x.to(torch.float16)):
            for i in range(2):
                outcome("warm", ops.sum, tensor, 1)
                outcome("warm", ops.max, tensor, 1)
        values, served = {}, {}

        def case(what, function, *args, **kwargs):
            before = served_natively("sum", "max")
            values[what] = [outcome(f"{what}, {i}", function, *args, **kwargs) for i in range(2)]
            served[what] = served_natively("sum", "max") - before

        g = tag("g", at(0, 6, 40)).requires_grad_()
        case("grad", ops.sum, g, 1)
        case("grad of both", lambda: [t.requires_grad for t in ops.max(g, 1)])
        case("held, grad", ops.sum.prepare(x, 1), g)
        with torch.no_grad():
            case("no_grad", ops.sum, g, 1)
            case("held, no_grad", ops.sum.prepare(x, 1), g)
        with torch.inference_mode():
            case("inference mode", ops.sum, x, 1)
            case("inference mode, both", ops.max, x, 1)
            y = tag("y", at(0, 6, 40))
            case("inference tensor", ops.sum, y, 1)
            out = tag("iout", at(0, 6))
            case("inference out", lambda: ops.sum(y, 1, out=out) is out)
            case("inference out again", lambda: ops.sum(y, 1, out=out) is out)
        case("inference tensor outside", ops.sum, y, 1)
        case("inference out outside", lambda: ops.sum(y, 1, out=out) is out)
        case("parameter", ops.sum, tag("p", torch.nn.Parameter(at(0, 6, 40))), 1)
        case("conj", lambda: ops.sum(c.conj(), 1) is None)
        case("neg", lambda: ops.sum(c.conj().imag, 1) is None)
        with fwd.dual_level():
            case("level alone", ops.sum, x, 1)
            dual = fwd.make_dual(x, torch.ones_like(x))
            case("dual", lambda: fwd.unpack_dual(ops.sum(dual, 1)).tangent is not None)
            case("dual, held", ops.sum.prepare(x, 1), dual)
            case("dual, out", ops.sum, dual, 1, out=tag("o", at(0, 6)))
            case("dual, direct", ops.sum.direct, dual, 1)
        case("vmap", lambda: torch.vmap(lambda t: ops.sum(t, 0))(x).shape)
        case("func.grad", lambda: torch.func.grad(lambda t: ops.sum(t))(x).shape)
        seen = []
        class See(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(str(func))
                return func(*args, **(kwargs or {}))
        with See():
            case("mode", lambda: ops.sum(x, 1).shape)
            case("mode, both", lambda: ops.max(x, 1).values.shape)
        values["seen"] = [name for name in seen if "aot" in name]
        class Sub(torch.Tensor):
            pass
        case("subclass", ops.sum, x.as_subclass(Sub), 1)
        case("meta", ops.sum, torch.empty(6, 40, device="meta"), 1)
        case("empty", ops.sum, torch.empty(0, 40), 1)
        case("empty, one left", ops.sum, torch.empty(0, 40), 0)
        case("empty max", ops.max, torch.empty(0, 40), 0)
        with FakeTensorMode():
            case("fake", lambda: type(ops.sum(torch.empty(6, 40), 1)).__name__)
        case("sparse", ops.sum, x.to_sparse(), 1)
        case("quantized", ops.sum, torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), 1)
        import warnings
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda t: ops.sum(t, 1), (x,), check_trace=False)
        values["traced"] = [node.kind() for node in traced.graph.nodes() if "aot" in node.kind()]
        case("plain again", ops.sum, x, 1)
        finish(values, **served)
        """,
        reductions,
        ops=True,
    )
    served = {what for what, count in result.served.items() if count}
    native = ("no_grad", "inference mode", "inference mode, both", "inference tensor", "inference out again")
    assert served >= {*native, "inference tensor outside", "plain again"}
    allowed = {*native, "inference tensor outside", "inference out", "inference out outside", "plain again"}
    assert served <= allowed
    assert result.value["traced"] == ["aot::sum"]
    assert result.value["seen"] == ["aot.sum.default", "aot.sum.default", "aot.max.dim", "aot.max.dim"]
    assert result.value["dual"] == ["True", "True"]
    assert result.value["dual, held"][0][0] == "RuntimeError"


def test_out(driver: Path, reductions: Path) -> None:
    result: Both = make_both(driver)(
        """
        import warnings
        x = tag("x", at(0, 6, 40))
        values, served = {}, {}
        def case(what, function, *args, **kwargs):
            before = served_natively("sum", "max", "argmax")
            got = []
            for i in range(3):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    out = kwargs["out"]
                    done = outcome(f"{what}, {i}", function, *args, **kwargs)
                    outs = out if isinstance(out, (tuple, list)) else (out,)
                    got.append([done, [shown(o) for o in outs], [str(w.message) for w in caught]])
            values[what] = got
            served[what] = (
                served_natively("sum", "max", "argmax") - before)

        case("fits", ops.sum, x, 1, out=tag("o", at(0, 6)))
        case("fits, another", ops.sum, x, 1, out=tag("o2", at(0, 6)))
        case("none", ops.sum, x, 1, out=None)
        case("misaligned", ops.sum, x, 1, out=tag("mis", at(1, 6)))
        case("other shape", ops.sum, x, 1, out=tag("shape", at(0, 5)))
        case("empty", ops.sum, x, 1, out=torch.empty(0))
        case("strided", ops.sum, x, 1, out=tag("strided", at(0, 12))[::2])
        case("wrong dtype", ops.amax, x, 1, out=at(0, 6, dtype=torch.int8))
        case("other dtype", ops.sum, x, 1, out=at(0, 6, dtype=torch.float16))
        case("no tensor", ops.sum, x, 1, out=5)
        case("pair for one", ops.sum, x, 1, out=(at(0, 6), at(0, 6)))
        case("expanded", ops.sum, x, 1, out=at(0, 1).expand(6))
        case("meta", ops.sum, x, 1, out=torch.empty(6, device="meta"))
        case("needs grad", ops.sum, x, 1, out=at(0, 6).requires_grad_())
        both = tag("both", at(0, 6 * 40 + 6))
        case("behind the input", ops.sum, both[:240].view(6, 40), 1, out=both[240:])
        case("inside the input", ops.sum, both[:240].view(6, 40), 1, out=both[100:106])
        case("its last element", ops.sum, both[:240].view(6, 40), 1, out=both[239:245])
        case("index", ops.argmax, x, 1, out=tag("i", at(0, 6, dtype=torch.int64)))
        case("a pair", ops.max, x, 1, out=(tag("v", at(0, 6)), tag("n", at(0, 6, dtype=torch.int64))))
        case("one for a pair", ops.max, x, 1, out=at(0, 6))
        case("keepdim", ops.sum, x, 1, True, out=tag("k", at(0, 6, 1)))
        case("no dimensions", ops.sum, x, out=tag("zero", at(0, 1)).view(()))
        w = tag("w", at(0, 6)).requires_grad_()
        saved = (w * 2).clone()
        loss = (saved * saved).sum()
        with torch.no_grad():
            case("saved for backward", ops.sum, x, 1, out=saved.detach())
        values["backward"] = outcome("", loss.backward)[1].split(";")[0]
        finish(values, **served)
        """,
        reductions,
        ops=True,
    )
    assert {what for what, count in result.served.items() if count} >= {
        *("fits", "fits, another", "none", "misaligned", "behind the input", "index", "keepdim"),
        *("no dimensions", "saved for backward"),
    }
    for what in ("inside the input", "its last element", "strided", "a pair", "one for a pair", "expanded"):
        assert result.served[what] == 0, what
    # Results, and the version of out: one more each time, in eager torch as here.
    assert [got[1][0][6] for got in result.value["fits"]] == [1, 2, 3]
    assert "modified by an inplace operation" in result.value["backward"]


def test_a_call_touches_no_file_and_no_environment(driver: Path, reductions: Path) -> None:
    """Field case C02: what a first call reads, later ones do not; neither natively nor in Python."""
    result: Both = make_both(driver)(
        """
        x = tag("x", at(0, 6, 40))
        out = tag("out", torch.empty(6))
        held = ops.sum.prepare(x, dim=1)
        calls = [lambda: ops.sum(x, 1), lambda: held(x), lambda: held(x, out=out), lambda: ops.max(x, 1)]
        for call in calls:
            call(), call()

        class Environment(dict):
            def __getitem__(self, name):
                seen.append(name)
                return super().__getitem__(name)

        seen, watching = [], False
        # ctypes only makes the bytes of a launch.
        def note(event, args):
            if watching and not event.startswith("ctypes."):
                seen.append(event)

        sys.addaudithook(note)
        os.environ._data = Environment(os.environ._data)
        watching = True
        for _ in range(50):
            for call in calls:
                call()
        watching = False
        # The watch itself works.
        os.environ.get("HOME"), os.listdir(".")
        noted = [name for name in seen if name not in (b"HOME",)]
        finish([noted, b"HOME" in seen], hits=ops.sum.remembering.hits if NATIVE is not None else 0)
        """,
        reductions,
        ops=True,
    )
    assert result.value == [[], True]
    assert result.served["hits"] >= 50
