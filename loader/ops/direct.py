"""The eleven functions on plain tensors, with calls that are remembered: what everything else ends in.

``aot.ops.<name>``, ``torch.ops.aot.<name>`` and the overrides of aten's operators differ in what
they ask before; a call that is like one before it is then served from the same place, natively where
that is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aot.loader import native, record
from aot.loader.ops import reductions
from aot.loader.ops.execute import ReductionCall
from aot.loader.ops.prepared import PreparedCall, plan_of
from aot.loader.ops.reductions import Reduction

# Calls that one function remembers in Python.
_MOST = 4096


class Calls:
    """How one function of ``reductions`` is called: prepared calls first, a new plan otherwise."""

    def __init__(self, function: Reduction[...]) -> None:
        self.name = function.__name__
        self.function = function
        self._prepared: dict[object, PreparedCall] = {}
        self._generation = native.generation

    def answer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The result of a call, and the native plan that can make it again, or None.

        Neither a gradient nor a mode of torch is asked for; raises what the function raises.
        """
        generation = native.generation
        key = _key(args, kwargs) if record.calls is None else None
        if key is not None:
            prepared = self._lookup(key)
            if prepared is not None:
                return prepared(args[0], out=kwargs.get("out")), None
        call = self.function.plan(*args, **kwargs)
        result, launched = call.make()
        if launched is None or key is None or not call.straight or not _one_out(call):
            return result, None
        prepared = PreparedCall.of(call, launched.held, self._again(args, kwargs))
        plan = plan_of(prepared, call, launched.results, to_hold=False)
        if plan is None:
            self._keep(key, prepared, generation)
        return result, plan

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Return the call as one to hold, without making it: ``held(input)`` or ``held(input, out=out)``.

        ``input`` must be like the one given here: dtype, shape, strides, device, and alignment to 16 bytes.
        Everything else is fixed. It goes straight to the kernel: autograd and torch's modes
        do not see it, and an input that requires grad is refused in grad mode. Raises what the
        call itself would raise, ``KernelMiss`` among it, and ``LaunchError`` for another input.
        """
        call = self.function.plan(*args, **kwargs)
        results = call.results()
        held = call.hold(call.arguments(results)) if call.straight else None
        prepared = PreparedCall.of(call, held, self._again(args, kwargs))
        if held is None or not _one_out(call):
            return prepared
        return plan_of(prepared, call, results, to_hold=True) or prepared

    def _again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """The call with another input and out, planned anew each time."""
        rest, function = args[1:], self.function
        named = {name: value for name, value in kwargs.items() if name not in ("input", "out")}

        def again(input: Any, out: Any = None) -> Any:
            return function(input, *rest, **named, out=out)

        return again

    def _lookup(self, key: object) -> PreparedCall | None:
        if self._generation != native.generation:
            self._prepared.clear()
            self._generation = native.generation
        return self._prepared.get(key)

    def _keep(self, key: object, prepared: PreparedCall, generation: int) -> None:
        # What was prepared for a bundle that was put away meanwhile serves nobody.
        if generation != native.generation:
            return
        if len(self._prepared) >= _MOST:
            self._prepared.clear()
        self._prepared[key] = prepared


def _one_out(call: ReductionCall) -> bool:
    """Whether a prepared call can take what this one took as ``out``: nothing, or one tensor."""
    return len(call.outs) < 2


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object | None:
    """What a call is remembered by, or None for one that is not. Types count: 1 and True differ."""
    if not args or len(kwargs) > 3:
        return None
    rest = (*args[1:], *kwargs.values())
    words: list[object] = [_tensor_key(args[0]), *kwargs]
    for value in rest:
        if isinstance(value, torch.Tensor):
            words.append(_tensor_key(value))
        elif isinstance(value, list | tuple):
            words.append((type(value), *map(type, value), *value))
        else:
            words.append((type(value), value))
    try:
        hash(found := tuple(words))
    except TypeError:
        return None
    return None if None in words else found


def _tensor_key(tensor: Any) -> object | None:
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        return None
    try:
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg() or not tensor.numel():
            return None
        return (tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.data_ptr() % 16 == 0)
    except RuntimeError:
        # Nested tensors have no strides and those of a transform no address; planning says what is wrong.
        return None


class PythonOperation:
    """A function that remembers its calls, where the native launcher is not there."""

    def __init__(self, answer: Callable[..., tuple[Any, Any]]) -> None:
        self._answer = answer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer(args, kwargs)[0]


def remembering(answer: Callable[..., tuple[Any, Any]], *, guarded: bool) -> Any:
    """A callable that makes calls by ``answer`` and, natively, again by the plans that it gives.

    ``guarded``: calls under torch's dispatch modes and forward-mode differentiation all go to ``answer``.
    """
    module = native.with_torch()
    return PythonOperation(answer) if module is None else module.Operation(answer, guarded)


CALLS = {
    function.__name__: Calls(function)
    for function in (
        reductions.sum,
        reductions.mean,
        reductions.prod,
        reductions.amax,
        reductions.amin,
        reductions.max,
        reductions.min,
        reductions.argmax,
        reductions.argmin,
        reductions.any,
        reductions.all,
    )
}
"""Every function by its name."""

FUNCTIONS: dict[str, Any] = {name: remembering(calls.answer, guarded=False) for name, calls in CALLS.items()}
"""Every function, to be called on plain tensors, below autograd and every mode of torch."""
