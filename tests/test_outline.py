"""Opening reads an outline of the manifest: it says what decoding says, and never more than it knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundlemaker import Draft, make_bundle, pointer, rewrite_manifest, scalar, variant

from aot.errors import BundleError
from aot.manifest import Kernel, decode_manifest
from aot.outline import outline
from aot.reader import BundleReader

# A string may hold what begins a kernel or ends the list of them.
SPEC = 'k"],"launch_abi":1 {"grid":null,"name":"x" {"count":9,.py'
DRAFTS = (
    Draft(
        variants=[variant(pointer("x"), scalar("n", "i32", claim)) for claim in ("16", "any")],
        grid=("cdiv(n, 4)",),
    ),
    Draft(name="other", variants=[variant(pointer("y"), kernel="other")]),
)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "b", *DRAFTS)


def rewrite(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and write it as a writer does, its digest being right."""
    rewrite_manifest(path, edit)
    file = path / "manifest.json"
    value = json.loads(file.read_bytes())
    file.write_text(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n")


def kernels_of(path: Path) -> list[Kernel]:
    with BundleReader(path) as reader:
        return list(reader.kernels.values())


def _odd_strings(manifest: dict[str, Any]) -> None:
    manifest["provenance"]["environment"]["A"] = SPEC
    for kernel in manifest["kernels"]:
        kernel["source"] = SPEC


@pytest.mark.parametrize("edit", [lambda m: None, _odd_strings], ids=["plain", "odd strings"])
def test_outline_says_what_decoding_says(bundle: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    rewrite(bundle, edit)
    data = (bundle / "manifest.json").read_bytes()
    found, manifest = outline(data), decode_manifest(data, "B")
    assert found is not None
    assert (found.digest, found.ptxas) == (manifest.digest, manifest.provenance.ptxas)
    assert [tuple(pack) for pack in found.packs] == [(p.target, p.file, p.size) for p in manifest.packs]
    assert list(found.kernels) == ["k", "other"]
    assert kernels_of(bundle) == list(manifest.kernels)


def test_manifest_in_other_words_has_no_outline_and_the_same_kernels(bundle: Path) -> None:
    file = bundle / "manifest.json"
    before = kernels_of(bundle)
    value = json.loads(file.read_bytes())
    file.write_text(json.dumps(dict(reversed(value.items())), indent=1))
    assert outline(file.read_bytes()) is None
    assert kernels_of(bundle) == before


def test_every_changed_byte_takes_the_outline_away(bundle: Path) -> None:
    data = (bundle / "manifest.json").read_bytes().removesuffix(b"\n")
    assert outline(data) is not None
    for at in range(len(data)):
        assert outline(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None


def _kernel_twice(manifest: dict[str, Any]) -> None:
    manifest["kernels"].append(manifest["kernels"][1])
    manifest["variants"] = 4


def _pack(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest["packs"][0].update(fields)


OPENING: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("format", lambda m: m.update(format="zip")),
    ("version", lambda m: m.update(format_version=2)),
    ("launch ABI", lambda m: m.update(launch_abi=2)),
    ("launch ABI true", lambda m: m.update(launch_abi=True)),
    ("unknown field", lambda m: m.update(extra=1)),
    ("unknown field of what made it", lambda m: m["provenance"].update(extra="1")),
    ("another type", lambda m: m["provenance"].update(ptxas=1)),
    ("shortened", lambda m: m["kernels"].pop()),
    ("empty", lambda m: m.update(variants=0, kernels=[])),
    ("kernel twice", _kernel_twice),
    ("kernel with an unknown field first", lambda m: m["kernels"][1].update(extra=1)),
    ("table without a pack", lambda m: m["kernels"][0]["tables"][0].update(target="sm_80")),
    ("two packs", lambda m: m["packs"].append(m["packs"][0])),
    ("no pack", lambda m: m.update(packs=[])),
    ("path", _pack(file="../x.pack")),
    ("hidden file", _pack(file=".x.pack")),
    ("negative size", _pack(size=-1)),
    ("size of another type", _pack(size=True)),
    ("unknown field of a pack", _pack(extra=1)),
    ("unknown target", _pack(target="sm_99")),
]


@pytest.mark.parametrize("edit", [o[1] for o in OPENING], ids=[o[0] for o in OPENING])
def test_what_is_wrong_in_the_whole_is_refused_at_opening(
    bundle: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    rewrite(bundle, edit)
    with pytest.raises(BundleError, match="manifest"):
        BundleReader(bundle)


def _unknown_target(manifest: dict[str, Any]) -> None:
    manifest["packs"][0]["target"] = "sm_99"
    for kernel in manifest["kernels"]:
        kernel["tables"][0]["target"] = "sm_99"


def test_an_unknown_target_is_refused_when_a_kernel_is_asked_for(bundle: Path) -> None:
    rewrite(bundle, _unknown_target)
    with BundleReader(bundle) as reader, pytest.raises(BundleError) as refused:
        reader.kernels["k"]
    assert "manifest.json: found target 'sm_99', wanted one of sm_75, " in str(refused.value)


def _table(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest["kernels"][0]["tables"][0].update(fields)


def _same_table(manifest: dict[str, Any]) -> None:
    manifest["kernels"][0]["tables"] = manifest["kernels"][1]["tables"] * 2


KERNELS: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    (
        "sha256",
        _table(sha256="0"),
        ", kernel k: Expected `str` of length >= 64 - at `$.tables[0].sha256`; "
        "the file is damaged, build the bundle again",
    ),
    (
        "unknown field",
        lambda m: m["kernels"][0].update(with_more=1),
        ", kernel k: Object contains unknown field `with_more`; the file is damaged, build the bundle again",
    ),
    ("table twice", _same_table, ": the same table is listed twice"),
]


@pytest.mark.parametrize(("edit", "fault"), [k[1:] for k in KERNELS], ids=[k[0] for k in KERNELS])
def test_what_is_wrong_in_one_kernel_is_refused_when_it_is_asked_for(
    bundle: Path, edit: Callable[[dict[str, Any]], object], fault: str
) -> None:
    """And each time again, while the others are served."""
    rewrite(bundle, edit)
    with BundleReader(bundle) as reader:
        for _ in range(2):
            with pytest.raises(BundleError) as refused:
                reader.kernels["k"]
            assert str(refused.value) == f"{bundle}/manifest.json{fault}"
        assert len(reader.table(reader.kernels["other"].tables[0])) == 1
        with pytest.raises(KeyError):
            reader.kernels["nowhere"]


def test_one_table_of_two_kernels_is_refused(bundle: Path) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["kernels"][0]["tables"] = manifest["kernels"][1]["tables"]
        manifest["variants"] = 2

    rewrite(bundle, edit)
    with BundleReader(bundle) as reader:
        assert reader.kernels["other"].name == "other"
        with pytest.raises(BundleError, match=r"manifest\.json: the same table is listed twice$"):
            reader.kernels["k"]


def test_an_entry_is_refused_when_it_is_taken(tmp_path: Path) -> None:
    def edit(entries: list[Any]) -> None:
        entries[1]["binary"]["hidden"] = 3

    path = make_bundle(tmp_path / "b", DRAFTS[0], edit_entries=edit)
    with BundleReader(path) as reader:
        table = reader.table(reader.kernels["k"].tables[0])
        assert len(table) == 2
        assert table[0] is table[0]
        for _ in range(2):
            with pytest.raises(BundleError, match=r"Expected `int` <= 2 - at `\$\[1\]\.binary\.hidden`; "):
                table[1]
