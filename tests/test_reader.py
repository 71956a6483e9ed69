"""A bundle that is wrong in any one way is refused, by a message that names the file and the fault."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundlemaker import Draft, constexpr, make_bundle, pack_file, pointer, rewrite_manifest, scalar, variant

from aot.errors import BundleError
from aot.reader import BundleReader

DRAFTS = (
    Draft(
        variants=[
            variant(pointer("x"), scalar("n", "i32", "16"), constexpr("OP", "sum")),
            variant(pointer("x", align=1), scalar("n"), constexpr("OP", "sum")),
        ]
    ),
    Draft(name="other", variants=[variant(pointer("y"), kernel="other")]),
)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "b", *DRAFTS)


def read_all(path: Path) -> int:
    """Read everything a bundle has; return the number of cubins."""
    with BundleReader(path) as reader:
        entries = [e for k in reader.manifest.kernels for t in k.tables for e in reader.table(t)]
        return len([reader.cubin(e.variant.target, e.binary.cubin) for e in entries])


def refusal(path: Path) -> str:
    """The message that a bundle is refused with, the path of the bundle and hashes made short."""
    with pytest.raises(BundleError) as refused:
        read_all(path)
    text = str(refused.value).replace(str(path), "B")
    text = re.sub(r"(?<=sm_90\.)[0-9a-f]{16}(?=\.pack)", "HASH", text)
    return re.sub(r"\b[0-9a-f]{64}\b", "SHA", re.sub(r"(?<=cubin )[0-9a-f]{12}", "SHA", text))


def flip(file: Path, at: int) -> None:
    """Change one bit."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("codec", ["zlib", "none"])
def test_a_whole_bundle_is_read(tmp_path: Path, codec: str) -> None:
    assert read_all(make_bundle(tmp_path / "b", *DRAFTS, codec=codec)) == 3


def test_a_link_to_the_directory_is_a_bundle(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(bundle)
    assert read_all(tmp_path / "link") == 3


def test_no_bundle_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name, found in [("nowhere", "nothing"), ("file", "a file")]:
        with pytest.raises(BundleError) as refused:
            BundleReader(tmp_path / name)
        assert str(refused.value) == (
            f"{tmp_path / name}: found {found}, wanted a bundle (a directory with manifest.json)"
        )


# The manifest's bytes.


BYTES: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("cut in half", lambda b: b[: len(b) // 2], "Input data was truncated"),
    ("empty", lambda b: b"", "Input data was truncated"),
    ("a list", lambda b: b"[]", "Expected `object`, got `array`"),
    ("not UTF-8", lambda b: b"\xff" + b, "JSON is malformed: invalid character (byte 0)"),
    ("two values", lambda b: b + b"{}", "JSON is malformed: trailing characters (byte"),
    ("a NaN", lambda b: re.sub(rb'("variants": ?)3', rb"\1NaN", b), "JSON is malformed: invalid character"),
]


@pytest.mark.parametrize(("change", "fault"), [m[1:] for m in BYTES], ids=[m[0] for m in BYTES])
def test_manifest_that_is_no_json(bundle: Path, change: Callable[[bytes], bytes], fault: str) -> None:
    """Field case C04."""
    file = bundle / "manifest.json"
    file.write_bytes(change(file.read_bytes()))
    message = refusal(bundle)
    assert message.startswith(f"B/manifest.json: {fault}")
    assert message.endswith("; the file is damaged, build the bundle again")


def test_manifest_missing_or_linked(bundle: Path) -> None:
    """Field case C16."""
    file = bundle / "manifest.json"
    elsewhere = file.rename(bundle / "elsewhere.json")
    wanted = "wanted a regular file of a bundle"
    assert refusal(bundle) == f"B/manifest.json: found no such file or directory, {wanted}"
    file.symlink_to(elsewhere)
    assert refusal(bundle) == f"B/manifest.json: found a symbolic link, {wanted}"


def test_manifest_changed_after_it_was_written(bundle: Path) -> None:
    file = bundle / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b"kernels.py", b"kernelz.py"))
    assert refusal(bundle) == (
        "B/manifest.json: found contents of digest SHA, wanted SHA; "
        "the manifest was changed after it was written, build the bundle again"
    )


@pytest.mark.parametrize(
    "written",
    [
        lambda value: json.dumps(value, indent=1, sort_keys=True),
        lambda value: json.dumps(value, indent=4),
        lambda value: json.dumps(dict(reversed(value.items())), separators=(",", ":")),
        lambda value: " " + json.dumps(value, sort_keys=True, separators=(",", ":")) + "\n\n",
    ],
    ids=["indented", "in another order and indented", "in another order", "with spaces around"],
)
def test_manifest_written_in_other_words(bundle: Path, written: Callable[[Any], str]) -> None:
    """The digest is that of the values: how the JSON is spaced and ordered does not matter."""
    file = bundle / "manifest.json"
    value = json.loads(file.read_bytes())
    file.write_text(written(value))
    assert read_all(bundle) == 3
    value["provenance"]["ptxas"] = "13.5"
    file.write_text(written(value))
    assert refusal(bundle).startswith("B/manifest.json: found contents of digest SHA, wanted SHA; ")


def test_manifest_as_it_is_written_is_canonical(bundle: Path) -> None:
    """So that readers may hash the bytes: each byte of them counts."""
    file = bundle / "manifest.json"
    text = file.read_text()
    value = json.loads(text)
    assert text == json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
    assert (
        value["digest"]
        == hashlib.sha256(text.rstrip("\n").replace(value["digest"], "", 1).encode()).hexdigest()
    )
    for change in (lambda t: t.replace("sm_90", "sm_80"), lambda t: t.replace(value["digest"], "0" * 64)):
        file.write_text(change(text))
        assert "wanted" in refusal(bundle)


# The manifest's contents, its digest being right.

Edit = Callable[[dict[str, Any]], object]


def _set(**fields: Any) -> Edit:
    return lambda manifest: manifest.update(fields)


def _pack(**fields: Any) -> Edit:
    return lambda manifest: manifest["packs"][0].update(fields)


def _twice(manifest: dict[str, Any]) -> None:
    manifest["kernels"].append(manifest["kernels"][1])
    manifest["variants"] = 4


def _same_table(manifest: dict[str, Any]) -> None:
    manifest["kernels"][1]["tables"] = manifest["kernels"][0]["tables"]
    manifest["variants"] = 4


def _target(manifest: dict[str, Any]) -> None:
    manifest["packs"][0]["target"] = "sm_99"
    for kernel in manifest["kernels"]:
        for table in kernel["tables"]:
            table["target"] = "sm_99"


DAMAGED = "; the file is damaged, build the bundle again"
MANIFESTS: list[tuple[str, Edit, str]] = [
    ("format", _set(format="zip"), "found format 'zip', wanted 'aot-bundle'; this is no bundle"),
    (
        "newer version",
        _set(format_version=2),
        "found format_version 2, this version reads 1; upgrade aot-kernels",
    ),
    (
        "older version",
        _set(format_version=0),
        "found format_version 0, this version reads 1; build the bundle again",
    ),
    ("launch ABI", _set(launch_abi=2), "found launch_abi 2, this version reads 1; upgrade aot-kernels"),
    (
        "version of another type",
        _set(format_version="1"),
        f"Expected `int`, got `str` - at `$.format_version`{DAMAGED}",
    ),
    ("no format", lambda m: m.pop("format"), f"Object missing required field `format`{DAMAGED}"),
    ("no packs", lambda m: m.pop("packs"), f"Object missing required field `packs`{DAMAGED}"),
    ("unknown field", _set(extra=1), f"Object contains unknown field `extra`{DAMAGED}"),
    ("shortened", _set(variants=4), "its tables hold 3 variants, wanted 4; build the bundle again"),
    ("empty", _set(variants=0, kernels=[]), "the bundle is empty; build it again"),
    ("kernel twice", _twice, "the same kernel is listed twice"),
    ("table twice", _same_table, "the same table is listed twice"),
    ("no pack", _set(packs=[]), "kernel k is built for sm_90, which has no pack"),
    ("two packs", lambda m: m["packs"].append(m["packs"][0]), "target sm_90 has two packs"),
    ("path", _pack(file="../x.pack"), "Expected `str` matching regex '^[a-z0-9][a-z0-9_.-]{0,99}$'"),
    ("path of Windows", _pack(file="..\\x.pack"), "Expected `str` matching regex"),
    ("absolute path", _pack(file="/etc/passwd"), "Expected `str` matching regex"),
    ("negative size", _pack(size=-1), f"Expected `int` >= 0 - at `$.packs[0].size`{DAMAGED}"),
]


@pytest.mark.parametrize(("edit", "fault"), [m[1:] for m in MANIFESTS], ids=[m[0] for m in MANIFESTS])
def test_manifest_that_says_something_wrong(bundle: Path, edit: Edit, fault: str) -> None:
    """Field cases C04 and C17."""
    rewrite_manifest(bundle, edit)
    message = refusal(bundle)
    assert message.startswith(f"B/manifest.json: {fault}")
    assert message.endswith(fault) or "regex" in fault


def test_manifest_of_an_unknown_target(bundle: Path) -> None:
    rewrite_manifest(bundle, _target)
    message = refusal(bundle)
    assert message.startswith("B/manifest.json: found target 'sm_99', wanted one of sm_75, ")
    assert message.endswith("; upgrade aot-kernels")


# Packs.


def _link(file: Path) -> None:
    file.symlink_to(file.rename(file.with_name("elsewhere")))


def _fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


PACKS: list[tuple[str, Callable[[Path], object], str]] = [
    (
        "missing",
        lambda f: f.unlink(),
        r"found no such file or directory, wanted a regular file of a bundle",
    ),
    ("a link", _link, r"found a symbolic link, wanted a regular file of a bundle"),
    ("a pipe", _fifo, r"wanted a regular file"),
    ("a folder", _folder, r"wanted a regular file"),
    ("of 0 bytes", lambda f: f.write_bytes(b""), r"found 0 bytes, wanted \d+; the file was cut or changed"),
    (
        "cut",
        lambda f: f.write_bytes(f.read_bytes()[:-1]),
        r"found \d+ bytes, wanted \d+; the file was cut or changed",
    ),
    (
        "longer",
        lambda f: f.write_bytes(f.read_bytes() + b"x"),
        r"found \d+ bytes, wanted \d+; the file was cut or changed",
    ),
    ("of another kind", lambda f: flip(f, 0), r"the header is not that of a pack of version 1"),
    ("of another version", lambda f: flip(f, 8), r"the header is not that of a pack of version 1"),
    ("with flags", lambda f: flip(f, 12), r"the header is not that of a pack of version 1"),
]


@pytest.mark.parametrize(("damage", "fault"), [p[1:] for p in PACKS], ids=[p[0] for p in PACKS])
def test_pack_that_is_wrong(bundle: Path, damage: Callable[[Path], object], fault: str) -> None:
    """Field cases C04 and C16: refused when the bundle is opened, not in the first request."""
    damage(pack_file(bundle))
    assert re.fullmatch(f"B/sm_90.HASH.pack: {fault}", refusal(bundle))


# Tables.


def _table(**fields: Any) -> Edit:
    return lambda manifest: manifest["kernels"][0]["tables"][0].update(fields)


def _table_by(name: str, difference: int) -> Edit:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["kernels"][0]["tables"][0][name] += difference

    return edit


def _count(manifest: dict[str, Any]) -> None:
    manifest["kernels"][0]["tables"][0]["count"] = 5
    manifest["variants"] = 6


def _swapped(manifest: dict[str, Any]) -> None:
    first, second = (kernel["tables"][0] for kernel in manifest["kernels"])
    first["types"], second["types"] = second["types"], first["types"]
    manifest["kernels"][0]["tables"], manifest["kernels"][1]["tables"] = [second], [first]


TABLES: list[tuple[str, Edit, str]] = [
    ("hash", _table(sha256="0" * 64), r"found sha256 SHA, wanted SHA; the bundle is damaged, build it again"),
    ("raw size too small", _table_by("raw_size", -1), r"found \d+ bytes, wanted \d+; build the bundle again"),
    ("raw size too large", _table_by("raw_size", 1), r"found \d+ bytes, wanted \d+; build the bundle again"),
    ("cut", _table_by("size", -1), r"does not decompress to \d+ bytes; build the bundle again"),
    ("bytes after it", _table_by("size", 1), r"does not decompress to \d+ bytes; build the bundle again"),
    ("moved", _table_by("offset", 1), r"does not decompress \(.*\); build the bundle again"),
    ("beyond the pack", _table(offset=10**9), r"found 0 bytes, wanted \d+; the file was cut"),
    ("at a huge offset", _table(offset=2**53), r"found 0 bytes, wanted \d+; the file was cut"),
    ("huge", _table(raw_size=2**40), r"found 1099511627776 bytes, wanted at most 134217728"),
    ("count", _count, r"found 2 variants, wanted 5"),
    ("dtypes", _table(types=["float16"]), r"holds a variant of another kernel, target or dtype"),
    ("of another kernel", _swapped, r"holds a variant of another kernel, target or dtype"),
]


@pytest.mark.parametrize(("edit", "fault"), [t[1:] for t in TABLES], ids=[t[0] for t in TABLES])
def test_table_that_is_not_where_the_manifest_says(bundle: Path, edit: Edit, fault: str) -> None:
    rewrite_manifest(bundle, edit)
    assert re.fullmatch(rf"B/sm_90.HASH.pack, table at \d+: {fault}", refusal(bundle))


def test_table_with_a_flipped_bit(bundle: Path) -> None:
    flip(pack_file(bundle), -1)
    fault = r"does not decompress \(.*\); build the bundle again"
    assert re.fullmatch(rf"B/sm_90.HASH.pack, table at \d+: {fault}", refusal(bundle))


def _variant(**fields: Any) -> Callable[[list[Any]], object]:
    return lambda entries: entries[0]["variant"].update(fields)


def _argument(index: int, at: int, value: Any) -> Callable[[list[Any]], object]:
    def edit(entries: list[Any]) -> None:
        args = entries[0]["variant"]["args"]
        if len(args) > index:
            args[index][at] = value

    return edit


ENTRIES: list[tuple[str, Callable[[list[Any]], object], str]] = [
    ("unknown field", lambda e: e[0].update(x=1), r"Object contains unknown field `x` - at `\$\[0\]`.*"),
    ("target", _variant(target="sm_80"), r"holds a variant of another kernel, target or dtype"),
    ("kernel", _variant(kernel="j"), r"holds a variant of another kernel, target or dtype"),
    ("dtype", _argument(0, 3, "float16"), r"holds a variant of another kernel, target or dtype"),
    ("alignment", _argument(0, 4, 8), r"Invalid enum value 8 - at .*"),
    ("name", _argument(1, 1, "m"), r"holds a variant whose arguments are not those of kernel 'k'"),
    ("claim", _argument(1, 3, "8"), r"Invalid enum value '8' - at .*"),
    ("type", _argument(1, 2, "i128"), r"found type 'i128' of n, wanted one of fp16, bf16, .*"),
    (
        "no args",
        _variant(args=[]),
        r"holds a variant of another kernel, target or dtype",
    ),
    ("warps", lambda e: e[0]["variant"]["options"].update(num_warps=0), r"Expected `int` >= 1 - at .*"),
    ("ctas", lambda e: e[0]["variant"]["options"].update(num_ctas=0), r"Expected `int` >= 1 - at .*"),
    ("scratch", lambda e: e[0]["binary"].update(scratch=[8, 0]), r"Expected `int` >= 1 - at .*"),
    ("hidden", lambda e: e[0]["binary"].update(hidden=3), r"Expected `int` <= 2 - at .*"),
    ("codec", lambda e: e[0]["binary"]["cubin"].update(codec="lz4"), r"Invalid enum value 'lz4' - at .*"),
    (
        "sha256",
        lambda e: e[0]["binary"]["cubin"].update(sha256="0"),
        r"Expected `str` of length >= 64 - at .*",
    ),
]


@pytest.mark.parametrize(("edit", "fault"), [e[1:] for e in ENTRIES], ids=[e[0] for e in ENTRIES])
def test_entry_that_is_wrong(tmp_path: Path, edit: Callable[[list[Any]], object], fault: str) -> None:
    path = make_bundle(tmp_path / "b", DRAFTS[0], edit_entries=edit)
    assert re.fullmatch(rf"B/sm_90.HASH.pack, table at \d+: {fault}", refusal(path))


# Cubins.


def _cubin(**fields: Any) -> Callable[[list[Any]], object]:
    return lambda entries: entries[0]["binary"]["cubin"].update(fields)


def _swap(entries: list[Any]) -> None:
    first, second = (entry["binary"]["cubin"] for entry in entries)
    for name in ("offset", "size", "raw_size"):
        first[name], second[name] = second[name], first[name]


CUBINS: list[tuple[str, Callable[[list[Any]], object], str]] = [
    ("hash", _cubin(sha256="1" * 64), r"found sha256 SHA, wanted SHA; the bundle is damaged, build it again"),
    ("two swapped", _swap, r"found sha256 SHA, wanted SHA; the bundle is damaged, build it again"),
    ("a bomb", _cubin(raw_size=10), r"does not decompress to 10 bytes; build the bundle again"),
    ("huge", _cubin(raw_size=2**40), r"found 1099511627776 bytes, wanted at most 134217728"),
    ("another codec", _cubin(codec="none"), r"found \d+ bytes, wanted \d+; build the bundle again"),
    ("beyond the pack", _cubin(offset=10**9), r"found 0 bytes, wanted \d+; the file was cut"),
]


@pytest.mark.parametrize(("edit", "fault"), [c[1:] for c in CUBINS], ids=[c[0] for c in CUBINS])
def test_cubin_that_is_wrong(tmp_path: Path, edit: Callable[[list[Any]], object], fault: str) -> None:
    path = make_bundle(tmp_path / "b", DRAFTS[0], edit_entries=edit)
    assert re.fullmatch(rf"B/sm_90.HASH.pack, cubin SHA at \d+: {fault}", refusal(path))


@pytest.mark.parametrize(
    ("codec", "fault"),
    [
        ("zlib", r"does not decompress \(.*\); build the bundle again"),
        ("none", r"found sha256 SHA, wanted SHA; the bundle is damaged, build it again"),
    ],
)
def test_cubin_with_a_flipped_bit(tmp_path: Path, codec: str, fault: str) -> None:
    """Field case C16: the very bytes that the driver would get are hashed."""
    path = make_bundle(tmp_path / "b", *DRAFTS, codec=codec)
    flip(pack_file(path), 100)
    assert re.fullmatch(rf"B/sm_90.HASH.pack, cubin SHA at \d+: {fault}", refusal(path))


def test_pack_replaced_while_open(bundle: Path) -> None:
    """Field case C16: a reader goes on with the file that it opened; a new one sees the new file."""
    with BundleReader(bundle) as reader:
        file = pack_file(bundle)
        data = file.read_bytes()
        file.unlink()
        file.write_bytes(b"x" * len(data))
        table = reader.manifest.kernels[0].tables[0]
        entry = reader.table(table)[0]
        assert reader.cubin("sm_90", entry.binary.cubin)[:4] == b"\x7fELF"
    assert refusal(bundle) == "B/sm_90.HASH.pack: the header is not that of a pack of version 1"


def test_pack_cut_while_open(bundle: Path) -> None:
    """Field case C04: found late, it is still one error that names the file, and other reads go on."""
    with BundleReader(bundle) as reader:
        table = reader.manifest.kernels[0].tables[0]
        entry = reader.table(table)[0]
        os.truncate(pack_file(bundle), 20)
        with pytest.raises(BundleError, match=r"the file was cut$"):
            reader.cubin("sm_90", entry.binary.cubin)
        assert reader.table(table)[0] is entry


def test_what_entries_have_in_common_is_one_object(tmp_path: Path) -> None:
    """A service keeps the tables that it read: equal parts of variants are stored once, and constexprs that
    are equal but not the same stay what they are."""
    values = [1, True, 1.0, 0.0, -0.0, "1", None, 1]
    made = [variant(pointer("x"), scalar("n"), constexpr("C", value), axes={"op": "sum"}) for value in values]
    path = make_bundle(tmp_path / "b", Draft(variants=made, binary={"salt": b"one cubin"}))
    with BundleReader(path) as reader:
        entries = reader.table(reader.manifest.kernels[0].tables[0])
    assert [repr(entry.variant.args[2].value) for entry in entries] == list(map(repr, values))  # type: ignore[union-attr]
    first, last = entries[0], entries[-1]
    for one, other in zip(first.variant.args, last.variant.args, strict=True):
        assert one is other
    for entry in entries[1:]:
        assert entry.variant.args[:2] == first.variant.args[:2]
        assert entry.variant.args[0] is first.variant.args[0]
        assert entry.variant.options is first.variant.options
        assert entry.variant.axes["op"] is first.variant.axes["op"]
        assert entry.binary.cubin is first.binary.cubin
        assert entry.binary.params is first.binary.params


def test_threads_read_a_table_once(bundle: Path) -> None:
    """The entries of a table are the same objects for every thread: launches go by their identity."""
    with BundleReader(bundle) as reader:
        table = reader.manifest.kernels[0].tables[0]
        start = threading.Barrier(8)
        found: list[object] = []

        def work() -> None:
            start.wait()
            found.append(reader.table(table))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert {id(entries) for entries in found} == {id(reader.table(table))}


def test_closed_bundle_reads_nothing_more(bundle: Path) -> None:
    reader = BundleReader(bundle)
    first, second = (kernel.tables[0] for kernel in reader.manifest.kernels)
    before = reader.table(first)
    reader.close()
    reader.close()
    assert reader.table(first) is before
    with pytest.raises(BundleError, match=r"the bundle was closed$"):
        reader.table(second)


def test_no_descriptor_is_left_open(bundle: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for damage in (lambda: None, lambda: flip(pack_file(bundle), 0), lambda: pack_file(bundle).unlink()):
        damage()
        for _ in range(20):
            with contextlib.suppress(BundleError):
                BundleReader(bundle).close()
    assert count() == before
