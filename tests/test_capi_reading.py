"""The C API reads what ``aot.reader`` reads, and refuses what it refuses, under the sanitizers."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundlemaker import Draft, constexpr, make_bundle, pack_file, pointer, rewrite_manifest, scalar, variant
from capi import C11, CXX17, HERE, INCLUDE, Probe, compiled
from test_reader import BYTES, CUBINS, DRAFTS, ENTRIES, MANIFESTS, PACKS, TABLES, flip, read_all

from aot.errors import BundleError
from aot.manifest import Missing, ParamInfo

DIST = Path(__file__).parent.parent / "dist"
DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    with Probe() as running:
        yield running


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "b", *DRAFTS)


def same_fault(probe: Probe, path: Path) -> str:
    """What both readers refuse a bundle with. They name the same place; where the fault is one of JSON
    or of zlib's data, each has words of its own."""
    with pytest.raises(BundleError) as refused:
        read_all(path)
    mine, theirs = probe.fault("readall", path), str(refused.value)
    assert mine.split(": ")[0] == theirs.split(": ")[0]
    own = r": (Expected|Object|Invalid|Input|JSON)|decompress|did you mean|bytes, wanted \d+; build the"
    if not re.search(own, theirs):
        assert mine == theirs
    return mine.replace(str(path), "B")


@pytest.mark.parametrize("compiler", [C11, CXX17], ids=["C11", "C++17"])
def test_it_compiles_without_a_warning(tmp_path: Path, compiler: tuple[str, ...]) -> None:
    """As C and as C++, optimised, where the compiler looks closest."""
    program = compiled(HERE / "probe.c", tmp_path / "probe", "-O2", compiler=compiler)
    assert program.stat().st_size > 0


def test_the_header_alone_declares_and_defines_nothing(tmp_path: Path) -> None:
    """Any number of files may include it."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.c").write_text('#include "aot.h"\n#include "aot.h"\n' + f"int {name};\n")
    (tmp_path / "main.c").write_text(
        '#define AOT_IMPLEMENTATION\n#include "aot.h"\n#include "aot.h"\nint main(void) { return 0; }\n'
    )
    compiled(tmp_path / "main.c", tmp_path / "program", str(tmp_path / "a.c"), str(tmp_path / "b.c"))


def test_the_documents_are_of_this_header(tmp_path: Path) -> None:
    """The reference names every function and every constant, and no other; the programs compile."""
    header = (INCLUDE / "aot.h").read_text()
    declared = header[: header.index("#endif /* AOT_H */")]
    wanted = set(re.findall(r"\b(aot_\w+)\(", declared)) | set(re.findall(r"^  (AOT_\w+)", declared, re.M))
    wanted |= set(re.findall(r"\bAOT_PARAM_\w+", declared))
    reference = (DOCS / "reference" / "c-api.md").read_text()
    assert wanted <= set(re.findall(r"\b(?:aot|AOT)_\w+", reference))
    known = set(re.findall(r"\b(?:aot|AOT)_\w+", header))
    assert set(re.findall(r"\b(?:aot|AOT)_\w+", reference)) - known <= {"AOT_CALLOC", "AOT_FREE"}
    guide = (DOCS / "how-to" / "c-api.md").read_text()
    programs = re.findall(r"```c\n(.*?)```", guide, re.S)
    assert len(programs) == 3
    for i, program in enumerate(programs):
        source = tmp_path / f"{i}.c"
        source.write_text(program)
        for compiler in (C11, CXX17):
            compiled(source, tmp_path / f"{i}.o", "-c", compiler=compiler)


@pytest.mark.parametrize("codec", ["zlib", "none"])
def test_a_whole_bundle_is_read(probe: Probe, tmp_path: Path, codec: str) -> None:
    path = make_bundle(tmp_path / "b", *DRAFTS, codec=codec)
    assert probe("readall", path) == ["ok", str(read_all(path))]
    assert probe("open", path) == ["ok"]
    assert probe("list") == ["ok", "sm_90", "k(x:0 n:1 OP:2)", "other(y:0)"]


def test_every_kind_of_value(probe: Probe, tmp_path: Path) -> None:
    """Names, defaults and errors with letters of every kind, and numbers of every kind, keep the digest."""
    params = (
        ParamInfo(name="x", kind="pointer"),
        ParamInfo(name="eps", kind="scalar", has_default=True, default=1e-6),
        ParamInfo(name="большой", kind="constexpr", has_default=True, default=2**70),
        ParamInfo(name="C", kind="constexpr", has_default=True, default='"\\\b\f\n\r\t\x01\x7f/é\u2028😀'),
        ParamInfo(name="D", kind="constexpr", has_default=True, default=-(2**63)),
        ParamInfo(name="E", kind="constexpr", has_default=True, default=1.7976931348623157e308),
    )
    draft = Draft(
        params=params,
        variants=[
            variant(
                pointer("x"),
                scalar("eps", "fp32"),
                *(constexpr(p.name, p.default) for p in params[2:]),
                axes={"é": True, "a": None, "b": 2**70, "c": -0.0},
            )
        ],
    )
    missing = Missing(kernel="k", target="sm_80", axes={"z": "ü", "a": 1.5}, error="line\nline")
    path = make_bundle(tmp_path / "b", draft, missing=(missing,))
    assert probe("readall", path) == ["ok", str(read_all(path))]


def test_fields_that_have_a_default(probe: Probe, bundle: Path) -> None:
    """The digest is that of the whole form: both readers put in what is left out."""
    file = bundle / "manifest.json"
    value = json.loads(file.read_bytes())
    assert value.pop("missing") == []
    for kernel in value["kernels"]:
        for param in kernel["params"]:
            del param["default"], param["has_default"]
    file.write_text(json.dumps(value))
    assert probe("readall", bundle) == ["ok", str(read_all(bundle))]


@pytest.mark.parametrize("name", ["reductions", "gpu-tests"])
def test_shipped_bundles(probe: Probe, name: str) -> None:
    path = DIST / name
    if not path.exists():
        pytest.skip(f"no {path.name} here; make bundle builds it")
    assert probe("readall", path) == ["ok", str(read_all(path))]


def test_no_bundle_at_all(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("nowhere", "file"):
        assert probe("open", tmp_path / name)[1] == "no bundle"
        same_fault(probe, tmp_path / name)


@pytest.mark.parametrize("change", [m[1] for m in BYTES], ids=[m[0] for m in BYTES])
def test_manifest_that_is_no_json(probe: Probe, bundle: Path, change: Callable[[bytes], bytes]) -> None:
    """Field case C04."""
    file = bundle / "manifest.json"
    file.write_bytes(change(file.read_bytes()))
    fault = same_fault(probe, bundle)
    assert re.fullmatch(
        r"B/manifest.json: found .*(byte \d+ of the JSON|at \$), wanted .*"
        r"|B/manifest.json: found .* at byte \d+ of the JSON; the file is damaged, build the bundle again",
        fault,
    )


def test_manifest_missing_linked_or_changed(probe: Probe, bundle: Path) -> None:
    """Field case C16."""
    file = bundle / "manifest.json"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"kernels.py", b"kernelz.py"))
    assert "the manifest was changed after it was written" in same_fault(probe, bundle)
    elsewhere = file.rename(bundle / "elsewhere.json")
    same_fault(probe, bundle)
    file.symlink_to(elsewhere)
    same_fault(probe, bundle)


@pytest.mark.parametrize("edit", [m[1] for m in MANIFESTS], ids=[m[0] for m in MANIFESTS])
def test_manifest_that_says_something_wrong(probe: Probe, bundle: Path, edit: Any) -> None:
    """Field cases C04 and C17."""
    rewrite_manifest(bundle, edit)
    same_fault(probe, bundle)


def test_what_the_c_reader_refuses_beyond_the_other(probe: Probe, bundle: Path) -> None:
    """No compiler writes these; C looks before it counts on them."""

    def twice(manifest: dict[str, Any]) -> None:
        manifest["kernels"][0]["params"][1]["name"] = "x"

    rewrite_manifest(bundle, twice)
    assert probe.fault("open", bundle).endswith(
        "manifest.json: found x at $.kernels[0].params[1].name, wanted a name that no other parameter has; "
        "the file is damaged, build the bundle again"
    )

    def broken(manifest: dict[str, Any]) -> None:
        manifest["kernels"][0]["params"][1]["name"] = "n"
        manifest["kernels"][0]["grid"] = ["n //"]

    rewrite_manifest(bundle, broken)
    assert "found expression 'n //' in the bundle" in probe.fault("open", bundle)


@pytest.mark.parametrize("damage", [p[1] for p in PACKS], ids=[p[0] for p in PACKS])
def test_pack_that_is_wrong(probe: Probe, bundle: Path, damage: Callable[[Path], object]) -> None:
    """Field cases C04 and C16: refused when the bundle is opened."""
    damage(pack_file(bundle))
    assert probe.fault("open", bundle)
    same_fault(probe, bundle)


@pytest.mark.parametrize("edit", [t[1] for t in TABLES], ids=[t[0] for t in TABLES])
def test_table_that_is_not_where_the_manifest_says(probe: Probe, bundle: Path, edit: Any) -> None:
    rewrite_manifest(bundle, edit)
    same_fault(probe, bundle)


@pytest.mark.parametrize("edit", [e[1] for e in ENTRIES], ids=[e[0] for e in ENTRIES])
def test_entry_that_is_wrong(probe: Probe, tmp_path: Path, edit: Callable[[list[Any]], object]) -> None:
    path = make_bundle(tmp_path / "b", DRAFTS[0], edit_entries=edit)
    with pytest.raises(BundleError) as refused:
        read_all(path)
    fault = probe.fault("readall", path)
    assert fault.split(": ")[0] == str(refused.value).split(": ")[0]
    assert "table at" in fault


@pytest.mark.parametrize("edit", [c[1] for c in CUBINS], ids=[c[0] for c in CUBINS])
def test_cubin_that_is_wrong(probe: Probe, tmp_path: Path, edit: Callable[[list[Any]], object]) -> None:
    path = make_bundle(tmp_path / "b", DRAFTS[0], edit_entries=edit)
    with pytest.raises(BundleError) as refused:
        read_all(path)
    fault = probe.fault("readall", path)
    assert fault.split(": ")[0] == str(refused.value).split(": ")[0]
    assert "cubin" in fault


@pytest.mark.parametrize("codec", ["zlib", "none"])
def test_every_cut_and_many_flipped_bits(probe: Probe, tmp_path: Path, codec: str) -> None:
    """A damaged bundle is refused, or it is read as the whole one is; memory stays sound.

    The Python reader is asked too: what it reads, C reads, and the other way round.
    """
    path = make_bundle(tmp_path / "b", *DRAFTS, codec=codec)
    chance = random.Random(codec)
    for file in (path / "manifest.json", pack_file(path)):
        whole = file.read_bytes()
        cuts = [whole[:at] for at in chance.sample(range(len(whole)), 60)]
        flips = []
        for bit in chance.sample(range(8 * len(whole)), 250):
            changed = bytearray(whole)
            changed[bit // 8] ^= 1 << bit % 8
            flips.append(bytes(changed))
        for data in cuts + flips:
            file.write_bytes(data)
            try:
                wanted = ["ok", str(read_all(path))]
            except BundleError:
                wanted = ["error"]
            found = probe("readall", path)
            assert found[: len(wanted)] == wanted, found
        file.write_bytes(whole)


@pytest.mark.parametrize("what", ["manifest", "entries"])
def test_changed_values_with_right_hashes(probe: Probe, tmp_path: Path, what: str) -> None:
    """Whatever stands in the JSON, behind a digest and hashes that hold: refused or read, never a crash."""
    chance = random.Random(what)
    values: list[Any] = [None, True, -1, 0, 1, 2**53, 2**53 + 1, 2**64, -(2**63), 1.5, "", "x", "é" * 1001]
    values += [
        [],
        {},
        [[]],
        {"dtype": "x"},
        ["pointer"],
        ["scalar", "n", "i32", "16"],
        "sm_90",
        "-" * 60 + "1",
    ]

    def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        yield path
        if isinstance(value, dict | list):
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                yield from places(inner, (*path, key))

    def put(root: Any, path: tuple[Any, ...], value: Any) -> None:
        for key in path[:-1]:
            root = root[key]
        root[path[-1]] = value

    accepted = refused = 0
    for round_ in range(300):

        def edit(root: Any) -> None:
            put(root, chance.choice([p for p in places(root) if p]), chance.choice(values))

        path = tmp_path / f"b{round_}"
        if what == "manifest":
            make_bundle(path, *DRAFTS, edit_manifest=edit)
        else:
            make_bundle(path, DRAFTS[0], edit_entries=edit)
        try:
            wanted = ["ok", str(read_all(path))]
        except BundleError:
            wanted = ["error"]
        found = probe("readall", path)
        if found[0] != wanted[0]:
            # C looks at expressions and names when it reads them, the other when it uses them.
            assert wanted[0] == "ok"
            assert re.search(r"found expression|a grid of another|no other parameter|64 bits", found[-1]), (
                found
            )
        accepted += found[0] == "ok"
        refused += found[0] == "error"
    assert refused > 150
    assert accepted > 5


def test_memory_that_runs_out(probe: Probe, bundle: Path) -> None:
    """At every single allocation: an error, and the next call is right."""
    for limit in range(10_000):
        probe("allocations", limit)
        answer = probe("readall", bundle)
        if answer[0] == "ok":
            break
        assert answer[1] == "memory"
        assert answer[-1] == "the host is out of memory; free some and call again"
    probe("allocations", -1)
    assert limit > 20
    assert probe("readall", bundle)[0] == "ok"


def test_pack_cut_while_open(probe: Probe, bundle: Path) -> None:
    """Field case C04: found late, it is one error, and the process goes on."""
    probe("open", bundle)
    os.truncate(pack_file(bundle), 20)
    assert probe.fault("select", "k", 90, 232448).endswith("the file was cut")
    assert probe.fault("select", "other", 90, 232448).endswith("the file was cut")
    assert probe("list")[0] == "ok"


def test_pack_replaced_while_open(probe: Probe, bundle: Path) -> None:
    """Field case C16: an open bundle goes on with the file that it opened."""
    probe("open", bundle)
    file = pack_file(bundle)
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(b"x" * len(data))
    assert probe("select", "k", 90, 232448)[0] == "ok"
    flip(file, 0)
    same_fault(probe, bundle)


def test_no_descriptor_is_left_open(probe: Probe, tmp_path: Path, bundle: Path) -> None:
    """More failed openings than a process has descriptors."""
    flip(pack_file(bundle), 0)
    for _ in range(1100):
        assert probe("open", bundle)[0] == "error"
    assert probe("readall", make_bundle(tmp_path / "whole", *DRAFTS))[0] == "ok"
