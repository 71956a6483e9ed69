"""YAML's traps: each is read as people mean it, or refused with its place and what to write."""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from spec_text import Folder, text

from aot.build import yamlnodes
from aot.build.yamlnodes import Faults, ListNode, MapNode, Node, ScalarNode, read_tree
from aot.build.yamlscalars import resolve
from aot.spec import Axis, ConstexprParam, Fixed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


def read(data: str | bytes) -> tuple[object, list[str]]:
    faults = Faults("f")
    tree = read_tree(data.encode() if isinstance(data, str) else data, faults)
    return plain(tree), list(faults.lines())


def plain(node: Node | None) -> object:
    match node:
        case ScalarNode():
            return node.value
        case ListNode():
            return [plain(item) for item in node.items]
        case MapNode():
            return {key.text: plain(value) for key, value in node.entries}
    return None


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


# Plain scalars -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("true", True),
        ("false", False),
        ("0", 0),
        ("-12", -12),
        ("9223372036854775807", 2**63 - 1),
        ("1e3", 1000.0),
        ("1e+3", 1000.0),
        ("1.0e3", 1000.0),
        ("1e-5", 1e-5),
        ("9.10", 9.1),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5E2", -150.0),
        ("float16", "float16"),
        ("16x16", "16x16"),
        ("1.2.3", "1.2.3"),
        ("off-by-one", "off-by-one"),
        ("-", "-"),
        ("é—", "é—"),
    ],
)
def test_what_plain_scalars_mean(written: str, value: object) -> None:
    """Field case C22: 1e3 is a number."""
    kind, found, note = resolve(written)
    assert (type(found), found, note) == (type(value), value, "")
    assert kind in ("bool", "int", "float", "string")


@pytest.mark.parametrize(
    ("written", "note"),
    [
        *[(w, "which YAML 1.1 reads as true") for w in ("yes", "Yes", "on", "ON", "True", "TRUE")],
        *[(w, "which YAML 1.1 reads as false") for w in ("no", "NO", "off", "Off", "False", "FALSE")],
        *[(w, "which YAML 1.1 reads as null") for w in ("~", "Null", "NULL")],
        ("010", "which YAML 1.1 reads as 8"),
        ("-010", "which YAML 1.1 reads as -8"),
        ("+5", "which YAML 1.1 reads as 5"),
        ("1_000", "which YAML 1.1 reads as 1000"),
        ("1_0.5", "which YAML 1.1 reads as 10.5"),
        ("0x10", "which YAML 1.1 reads as 16"),
        ("0b11", "which YAML 1.1 reads as 3"),
        ("0o10", "which YAML 1.1 reads as the string '0o10'"),
        ("08", "which YAML 1.1 reads as the string '08'"),
        ("1e", "which YAML 1.1 reads as the string '1e'"),
        ("1:30", "which YAML 1.1 reads as 90"),
        (".nan", "which YAML 1.1 reads as nan"),
        (".inf", "which YAML 1.1 reads as inf"),
        ("-.Inf", "which YAML 1.1 reads as -inf"),
        ("1e999", "which is too large for a 64-bit float"),
        ("2024-01-01", "which YAML 1.1 reads as a date"),
        ("2024-99-99", "which YAML 1.1 reads as a date"),
        ("=", "which YAML 1.1 reads as a default key"),
        ("123456789012345678901", "which has more than 19 digits"),
        ("9" * 5000, "which has more than 19 digits"),
        ("0" * 5000, "which YAML 1.1 reads as 0"),
        ("\uff11\uff12", "which has digits other than 0 to 9"),
        ("٣", "which has digits other than 0 to 9"),
    ],
)
def test_traps(written: str, note: str) -> None:
    """Field cases C21 and C22."""
    assert resolve(written) == ("trap", None, note)


def test_y_and_n_are_names_but_no_values() -> None:
    """Field case C21."""
    assert resolve("y") == ("letter", None, "which YAML 1.1 reads as true")
    assert resolve("N") == ("letter", None, "which YAML 1.1 reads as false")


@given(st.integers(min_value=-(10**19) + 1, max_value=10**19 - 1))
def test_every_integer_is_read_as_it_prints(value: int) -> None:
    assert resolve(str(value)) == ("int", value, "")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_is_read_as_it_prints(value: float) -> None:
    kind, found, _ = resolve(repr(value))
    assert kind == "float"
    assert isinstance(found, float)
    assert math.copysign(1, found) == math.copysign(1, value)
    assert found == value


@given(st.text())
def test_no_text_makes_reading_fail(written: str) -> None:
    kind, value, note = resolve(written)
    assert (value is None) == (kind in ("null", "nothing", "letter", "trap"))
    assert bool(note) == (kind in ("letter", "trap"))
    read(written)


@given(st.binary(max_size=60))
def test_no_bytes_make_reading_fail(data: bytes) -> None:
    _, faults = read(data)
    assert all(fault.startswith("f:") for fault in faults)


# In a spec -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "faults"),
    [
        ({"axes": "axes: {dtype: fp16, n: {buckets: [8]}, op: [sum, no]}"},
         ["4:50: found no, which YAML 1.1 reads as false, wanted a string, a number, true, false or $axis; "
          'quote it ("no")']),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [8]}, op: [y]}"},
         ["4:45: found y, which YAML 1.1 reads as true, wanted a string, a number, true, false or $axis; "
          'quote it ("y")']),
        ({"kernel": "kernel: off"},
         ["2:9: found off, which YAML 1.1 reads as false, wanted a name of letters, digits and _ . -; "
          'quote it ("off")']),
        ({"rules": "on: build"},
         ["15:1: found the key on, which YAML 1.1 reads as true, wanted spec_version, kernel, source, axes, "
          "params, launch, general, targets, exclude, include"]),
        ({"launch": "launch: {fp_fusion: on}"},
         ["13:21: found on, which YAML 1.1 reads as true, wanted true or false"]),
        ({"launch": "launch: {fp_fusion: True}"},
         ["13:21: found True, which YAML 1.1 reads as true, wanted true or false"]),
        ({"launch": 'launch: {fp_fusion: "true"}'}, ["13:21: found 'true', wanted true or false"]),
        ({"launch": "launch: {num_warps: 04}"},
         ["13:21: found 04, which YAML 1.1 reads as 4, wanted a power of 2 from 1 to 32, or an expression"]),
        ({"launch": "launch: {num_warps: 4.0}"},
         ["13:21: found 4.0, wanted a power of 2 from 1 to 32, or an expression"]),
        ({"launch": "launch: {maxnreg: ~}"},
         ["13:19: found ~, which YAML 1.1 reads as null, wanted an integer from 1 to 255, an expression or "
          "null"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [1_024]}, op: a}"},
         ["4:35: found 1_024, which YAML 1.1 reads as 1024, wanted an integer from 1 to 2**63 - 1, or any"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [1e6]}, op: a}"},
         ["4:35: found 1e6, wanted an integer from 1 to 2**63 - 1, or any"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [9223372036854775808]}, op: a}"},
         ["4:35: found 9223372036854775808, wanted an integer from 1 to 2**63 - 1, or any"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [true]}, op: a}"},
         ["4:35: found true, wanted an integer from 1 to 2**63 - 1, or any"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [\uff11\uff12]}, op: a}"},
         ["4:35: found \uff11\uff12, which has digits other than 0 to 9, wanted an integer from 1 to "
          "2**63 - 1, or "
          "any"]),
        ({"axes": "axes: {dtype: fp16, n: {buckets: [8]}, op: [2024-01-01, .nan, 1:30]}"},
         ["4:45: found 2024-01-01, which YAML 1.1 reads as a date, wanted a string, a number, true, false or "
          '$axis; quote it ("2024-01-01")',
          "4:57: found .nan, which YAML 1.1 reads as nan, wanted a string, a number, true, false or $axis; "
          'quote it (".nan")',
          "4:63: found 1:30, which YAML 1.1 reads as 90, wanted a string, a number, true, false or $axis; "
          'quote it ("1:30")']),
        ({"BLOCK": "  BLOCK: {constexpr: 0x40}"},
         ["11:22: found 0x40, which YAML 1.1 reads as 64, wanted a number, true, false, null or an "
          "expression"]),
        ({"head": "spec_version: 1.0"}, ["1:15: found 1.0, wanted 1"]),
        ({"head": "spec_version: '1'"}, ["1:15: found '1', wanted 1"]),
        ({"targets": "targets: [9.10]"},
         ["14:11: found target '9.10', wanted one of sm_75, sm_80, sm_86, sm_87, sm_89, sm_90, sm_90a, "
          "sm_100, "
          "sm_100a, sm_103, sm_103a, sm_110, sm_110a, sm_120, sm_120a, sm_121, sm_121a"]),
        ({"x_ptr": '  x_ptr: {pointer: "float16\\n"}'},
         ["6:20: found dtype 'float16\\n', wanted one of float16, bfloat16, float32, float64, int8, int16, "
          "int32, int64, uint8, uint16, uint32, uint64, bool, float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, "
          "float8_e5m2fnuz, float8_e8m0fnu, complex32, complex64, complex128; did you mean 'float16'?"]),
    ],
)  # fmt: skip
def test_traps_in_a_spec(folder: Folder, parts: dict[str, str], faults: list[str]) -> None:
    """Field cases C21 and C22."""
    assert folder.wrong(**parts) == faults


def test_numbers_are_read_as_people_mean_them(folder: Folder) -> None:
    """Field case C22: 1e-5 for an eps, 10.0 and 90 for a target."""
    spec = folder.spec(BLOCK="  BLOCK: {constexpr: 1e-5}", targets="targets: [10.0, 90, 9.0a]")
    assert spec.params[5] == ConstexprParam(name="BLOCK", value=Fixed(value=1e-5))
    assert [str(target) for target in spec.targets] == ["sm_100", "sm_90", "sm_90a"]


def test_quoted_words_are_strings(folder: Folder) -> None:
    """Field case C21."""
    spec = folder.spec(axes='axes: {dtype: fp16, n: {buckets: [8]}, op: ["no", \'on\', "010", "~"]}')
    assert spec.blocks[0].axes[2] == Axis(names=("op",), rows=(("no",), ("on",), ("010",), ("~",)))


def test_parameters_may_be_named_y_and_n(folder: Folder) -> None:
    """Field case C21: key y."""
    folder.write("kernels.py", "import triton\n@triton.jit\ndef scale(y, n): pass\n")
    (spec,) = folder.load(
        "spec_version: 1\nkernel: s\nsource: kernels.py:scale\nparams:\n  y: {pointer: fp16}\n  n: "
        "{int: int32}\n"
        "launch: {grid: [n]}\ntargets: [sm_90]\n"
    )
    assert [param.name for param in spec.params] == ["y", "n"]


# Structure -----------------------------------------------------------------------------------


def test_duplicate_keys(folder: Folder) -> None:
    """Field case C23: both lines are named, and the rest of the file is still checked."""
    assert folder.wrong(targets="targets: [sm_90]\nkernel: again\ntargets: [sm_9]") == [
        "15:1: found the key 'kernel' a second time, wanted it once (first on line 2)",
        "16:1: found the key 'targets' a second time, wanted it once (first on line 14)",
    ]


def test_keys_of_different_types_are_different() -> None:
    assert read("{1: a, '1': b, 1.0: c, true: d}")[1] == []


def test_one_dtype_under_two_names(folder: Folder) -> None:
    """Field case C23: the same dtype listed under an alias."""
    assert folder.wrong(axes="axes: {dtype: [fp16, float16, half], n: {buckets: [8]}, op: a}") == [
        "4:22: found float16 a second time, wanted each value once",
        "4:31: found half a second time, wanted each value once",
    ]


def test_merge_keys() -> None:
    """Field case C23: merge keys still work."""
    assert read("a: &a {x: 1, y_: 2}\nb: {<<: *a, y_: 3}\nc: {z: 0, <<: [{x: 5}, *a]}\n") == (
        {"a": {"x": 1, "y_": 2}, "b": {"x": 1, "y_": 3}, "c": {"x": 5, "y_": 2, "z": 0}},
        [],
    )
    assert read("a: {<<: 1}")[1] == ["f:1:9: found 1 after '<<', wanted a mapping"]
    assert read("a: {'<<': 1}")[1] == []


def test_anchors(folder: Folder) -> None:
    spec = folder.spec(
        x_ptr="  x_ptr: &tensor {pointer: $dtype, align: [16, 1]}", y_ptr="  y_ptr: {<<: *tensor, align: 1}"
    )
    assert [getattr(param, "align", None) for param in spec.params[:2]] == [(16, 1), (1,)]


def test_a_loop_of_aliases(folder: Folder) -> None:
    """Field case C24."""
    assert folder.faults("&a [*a]") == ["1:5: found the alias '*a' inside its own anchor, wanted no loop"]
    assert folder.faults("a: *b") == ["1:4: found the alias '*b', wanted one with an anchor before it"]


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
    resource.setrlimit(resource.RLIMIT_AS, (500 * 2**20, 500 * 2**20))


def test_an_alias_bomb(folder: Folder) -> None:
    """Field case C24: refused in bounded time and memory, and the tree is not printed."""
    folder.write("bomb.yaml", bomb(9))
    code = (
        "import sys\nfrom aot.build.specfile import load_specs\nfrom aot.errors import SpecError\n"
        "try:\n    load_specs(['bomb.yaml'])\nexcept SpecError as error:\n    print(error)\n"
    )
    repository = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder.path,
        env={**os.environ, "PYTHONPATH": str(repository), "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (
        "bomb.yaml:6:10: found aliases that repeat 141148 values up to here, wanted at most 100000; "
        "write the values out\n",
        "",
    )


def test_a_small_bomb_in_a_wrong_place(folder: Folder) -> None:
    """Field case C24, in the error path: a tree within the limits is not printed either."""
    faults = folder.faults(bomb(4))
    assert len(faults) == 9
    assert faults[0] == "1:1: found no key 'kernel', wanted a name of letters, digits and _ . -"
    assert max(map(len, faults)) < 200


def test_large_files_without_aliases(folder: Folder) -> None:
    """Field case C24: the limit on aliases does not misfire on a legitimate file of 5 MB."""
    long_names = ", ".join(f"{i:0100d}x" for i in range(50_000))
    data = text(axes=f"axes: {{dtype: fp16, n: {{buckets: [8]}}, op: [{long_names}]}}")
    assert len(data) > 5 * 10**6
    start = time.monotonic()
    (spec,) = folder.load(data)
    assert time.monotonic() - start < 30
    assert isinstance(axis := spec.blocks[0].axes[2], Axis)
    assert len(axis.rows) == 50_000


def test_more_values_than_aliases_may_repeat(folder: Folder) -> None:
    numbers = ", ".join(map(str, range(120_000)))
    spec = folder.spec(axes=f"axes: {{dtype: fp16, n: {{buckets: [8]}}, op: [{numbers}]}}")
    assert isinstance(axis := spec.blocks[0].axes[2], Axis)
    assert len(axis.rows) == 120_000


@pytest.mark.parametrize("loader", sorted({yaml.SafeLoader, yamlnodes._LOADER}, key=str))
@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ("", "f:1:1: found an empty file, wanted a spec"),
        ("# nothing\n", "f:1:1: found an empty file, wanted a spec"),
        ("---\n...\n", "f:1:1: found an empty file, wanted a spec"),
        ("a: 1\n---\nb: 2\n", "f:2:1: found a second YAML document, wanted one document a file"),
        ("a:\n\tb: 1\n", "f:2:1: found a tab, wanted spaces; YAML is indented with spaces only"),
        ("a: !!python/object:os.system x",
         "f:1:4: found the tag 'tag:yaml.org,2002:python/object:os.system', wanted plain YAML without tags"),
        ("a: !foo x", "f:1:4: found the tag '!foo', wanted plain YAML without tags"),
        ("a: !!int '5'", "f:1:4: found the tag 'tag:yaml.org,2002:int', wanted plain YAML without tags"),
        ("a: ! x", "f:1:4: found the tag '!', wanted plain YAML without tags"),
        ("? [a]\n: 1\n", "f:1:3: found a list as a key, wanted a single value"),
        ("a: \x07", "f:1:4: found the character U+0007, wanted printable text"),
        ("é: \x00", "f:1:4: found the character U+0000, wanted printable text"),
        ("[" * 60 + "]" * 60, "f:1:52: found more than 50 nested levels, wanted a spec"),
    ],
)  # fmt: skip
def test_what_is_no_spec(data: str, fault: str, loader: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamlnodes, "_LOADER", loader)
    assert read(data)[1] == [fault]


def test_deep_nesting_does_not_exhaust_the_stack() -> None:
    (fault,) = read("[" * 100_000)[1]
    assert fault.startswith("f:1:")
    assert "nest" in fault


def test_yaml_that_does_not_parse() -> None:
    (fault,) = read("a: [1, 2\nb: 3\n")[1]
    assert fault.startswith("f:2:")
    assert "found YAML that does not parse (while parsing a flow sequence, " in fault
    assert fault.endswith("), wanted a spec")


def test_a_spec_that_is_no_mapping(folder: Folder) -> None:
    wanted = "wanted a spec: a mapping with spec_version, kernel, source, params, targets"
    assert folder.faults("[a]") == [f"1:1: found a list, {wanted}"]
    assert folder.faults("a") == [f"1:1: found 'a', {wanted}"]


# Encodings -----------------------------------------------------------------------------------


def test_encodings(folder: Folder) -> None:
    """Field case C25: BOM and CRLF are read, everything but UTF-8 is a clear error."""
    accents = text(rules="exclude: [{dtype: fp16, why: é —}]")
    (spec,) = folder.load(accents)
    assert spec.exclude[0].why == "é —"
    assert folder.load(b"\xef\xbb\xbf" + accents.encode()) == (spec,)
    assert folder.load(accents.replace("\n", "\r\n")) == (spec,)
    assert folder.load(accents.replace("\n", "\r")) == (spec,)
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        assert folder.faults(accents.encode(encoding)) == [
            "1:1: found UTF-16 or UTF-32, wanted UTF-8; save the file as UTF-8"
        ]
    assert folder.faults(accents.encode("utf-8").replace("é".encode(), b"\xe9")) == [
        "15:30: found the byte 0xe9, wanted UTF-8; save the file as UTF-8"
    ]


def test_columns_count_characters_and_skip_the_bom(folder: Folder) -> None:
    data = text(kernel="kernel: é").encode()
    assert folder.faults(data) == folder.faults(b"\xef\xbb\xbf" + data)
    assert read("é: [é, no")[1] == read("e: [e, no")[1]


def test_the_locale_does_not_matter(folder: Folder) -> None:
    """Field case C25: LC_ALL=C without UTF-8 mode."""
    folder.write("a.yaml", text(rules="exclude: [{dtype: fp16, why: é —}]"))
    folder.write("kernels.py", (folder.path / "kernels.py").read_text() + "# é —\n")
    code = "from aot.build.specfile import load_specs\nprint(ascii(load_specs(['a.yaml'])[0].exclude[0].why))"
    repository = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder.path,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(repository),
            "LC_ALL": "C",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "'\\xe9 \\u2014'\n"
