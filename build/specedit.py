"""Changes to a spec file that keep its writer's text: what is added stands where a person would add it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import yaml

from aot.build import yamlspans
from aot.build.yamlspans import (
    EditError,
    Node,
    append_item,
    append_key,
    items_of,
    scalar,
    source_of,
    value_of,
)
from aot.expr import Expr
from aot.spec import Const, DTypeValue, Result

_WHY = "recorded calls"
_PLAIN_SOURCE = re.compile(r"[A-Za-z0-9_./]+:[A-Za-z0-9_]+", re.ASCII)
# The claim of a parameter by the key that says its kind.
_TABLE_KEYS = {"pointer": "align", "int": "specialize", "float": "specialize", "constexpr": "constexpr"}


class SpecText:
    """The text of one spec file, changed call by call. Every method raises ``EditError``."""

    def __init__(self, text: str) -> None:
        self.text = text
        # The tree of a text is kept until the text changes.
        self._tree = yamlspans.compose(text)
        self._root_of = text

    def add_target(self, kernel: str, target: str) -> None:
        """Add a target to the kernel's own list, or to the one that the file's kernels share."""
        own = value_of(self._kernel(kernel), "targets")
        node = own if own is not None else value_of(self._root(), "targets")
        self.text = append_item(self.text, _there(node, "targets"), target)

    def add_value(self, kernel: str, block: int, axis: str, row: Sequence[Const], bucket: bool) -> None:
        """Add a row to the axis that sets the name ``axis`` in a block."""
        node, _ = self._axis(kernel, block, axis)
        if bucket:
            self._add_bound(_there(value_of(node, "buckets"), "buckets"), row[0])
        elif value_of(node, "zip") is not None:
            item = f"[{', '.join(map(scalar, row))}]"
            self.text = append_item(self.text, _there(value_of(node, "rows"), "rows"), item)
        else:
            self.text = append_item(self.text, node, scalar(row[0]))

    def is_shared(self, kernel: str, block: int, axis: str) -> bool:
        """Whether the axis stands at the top of the file, for all of its kernels."""
        return self._axis(kernel, block, axis)[1]

    def new_axis(self, kernel: str, name: str, value: Const) -> None:
        """Give every block of a kernel an axis with one value, its last."""
        item = f"[{scalar(value)}]"
        node = value_of(self._kernel(kernel), "axes")
        if node is None:
            self.text = append_key(
                self.text, self._kernel(kernel), "axes", f"{{{name}: {item}}}", after="source"
            )
            return
        count = len(items_of(node))
        for index in range(count):
            blocks = items_of(_there(value_of(self._kernel(kernel), "axes"), "axes"))
            self.text = append_key(self.text, blocks[index], name, item)

    def set_param(self, kernel: str, param: str, key: str, value: str) -> None:
        """Write ``key: value`` into the claim of a parameter."""
        node = self._param(kernel, param)
        old = value_of(node, key)
        if old is None:
            self.text = append_key(self.text, node, key, value)
        else:
            self.text = yamlspans.replace(self.text, old, value)

    def kind_of(self, kernel: str, param: str) -> str:
        """The key that says what a parameter is: pointer, int, float or constexpr."""
        node = self._param(kernel, param)
        return next(kind for kind in _TABLE_KEYS if value_of(node, kind) is not None)

    def param_text(self, kernel: str, param: str, key: str) -> str:
        """What stands under ``key`` in the claim of a parameter."""
        return source_of(self.text, _there(value_of(self._param(kernel, param), key), key))

    def set_option(self, kernel: str, option: str, value: str) -> None:
        """Write a launch option."""
        launch = value_of(self._kernel(kernel), "launch")
        if launch is None:
            self.text = append_key(
                self.text, self._kernel(kernel), "launch", f"{{{option}: {value}}}", after="params"
            )
        elif (old := value_of(launch, option)) is None:
            self.text = append_key(self.text, launch, option, value)
        else:
            self.text = yamlspans.replace(self.text, old, value)

    def option_text(self, kernel: str, option: str) -> str | None:
        """What a launch option is set to, None where it is left at its default."""
        launch = value_of(self._kernel(kernel), "launch")
        node = None if launch is None else value_of(launch, option)
        return None if node is None else source_of(self.text, node)

    def add_row(self, kernel: str, slot: str, is_option: bool, key: Const, result: Result) -> None:
        """Add a row to the table of a parameter or launch option, before its ``else``."""
        claim = slot
        if is_option:
            launch = _there(value_of(self._kernel(kernel), "launch"), "launch")
            table = _there(value_of(launch, slot), slot)
        else:
            claim = _TABLE_KEYS[self.kind_of(kernel, slot)]
            table = _there(value_of(self._param(kernel, slot), claim), claim)
        rows = [name.value for name, _ in table.value if name.value != "else"]
        word = str(result) if claim in ("align", "specialize") else result_text(result)
        self.text = append_key(self.text, table, bound_text(key), word, after=rows[-1])

    def include(self, kernel: str, combinations: Sequence[Mapping[str, Const]]) -> None:
        """Add combinations, a rule for each."""
        items = [
            f"{{{', '.join(f'{name}: {bound_text(value)}' for name, value in values.items())}, why: {_WHY}}}"
            for values in combinations
        ]
        node = value_of(self._kernel(kernel), "include")
        if items and node is not None:
            self.text = append_item(self.text, node, *items)
        elif items:
            self.text = yamlspans.append_list(self.text, self._kernel(kernel), "include", *items)

    def set_source(self, kernel: str, written: str) -> None:
        """Replace the source, as a copy in another folder needs it."""
        node = _there(value_of(self._kernel(kernel), "source"), "source")
        self.text = yamlspans.replace(
            self.text, node, written if _PLAIN_SOURCE.fullmatch(written) else scalar(written)
        )

    def _root(self) -> Node:
        if self._root_of is not self.text:
            self._tree, self._root_of = yamlspans.compose(self.text), self.text
        return self._tree

    def _kernel(self, kernel: str) -> Node:
        root = self._root()
        kernels = value_of(root, "kernels")
        for node in [root] if kernels is None else kernels.value:
            name = value_of(node, "kernel")
            if name is not None and name.value == kernel:
                found: Node = node
                return found
        raise EditError(f"found no kernel {kernel!r} written out")

    def _param(self, kernel: str, param: str) -> Node:
        return _there(value_of(_there(value_of(self._kernel(kernel), "params"), "params"), param), param)

    def _axis(self, kernel: str, block: int, axis: str) -> tuple[Node, bool]:
        """The node of an axis, and whether it is a shared one."""
        root, node = self._root(), self._kernel(kernel)
        own = value_of(node, "axes")
        is_alone = value_of(root, "kernels") is None
        shared = None if is_alone else value_of(root, "axes")
        count = 1 if own is None else len(items_of(own))
        places = [(own, block % count, False), (shared, block // count, True)]
        for blocks, index, is_shared in places:
            mapping = None if blocks is None else items_of(blocks)[index]
            for key, value in mapping.value if isinstance(mapping, yaml.MappingNode) else ():
                zipped = value_of(value, "zip")
                names = [key.value] if zipped is None else [item.value for item in items_of(zipped)]
                if axis in names:
                    return value, is_shared
        raise EditError(f"found the axis {axis!r} not written out (it is merged in with <<)")

    def _add_bound(self, node: Node, bound: Const) -> None:
        for item in node.value:
            if item.value == "any" or (isinstance(bound, int) and int(item.value) > bound):
                self.text = yamlspans.insert_before(self.text, node, item, bound_text(bound))
                return
        self.text = append_item(self.text, node, bound_text(bound))


def _there(node: Node | None, key: str) -> Node:
    if node is None:
        raise EditError(f"found {key!r} not written out (it is merged in with <<)")
    return node


def bound_text(value: Const) -> str:
    """A value of an axis as rules and tables name it."""
    return "any" if value is None else scalar(value)


def result_text(result: Result) -> str:
    """A constexpr or an option as a spec has it."""
    if isinstance(result, DTypeValue):
        return f"{{dtype: {result.name}}}"
    if isinstance(result, Expr):
        return scalar(str(result))
    return f"{{text: {scalar(result)}}}" if isinstance(result, str) else scalar(result)
