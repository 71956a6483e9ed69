"""Small bundles for tests, written from docs/bundle-format.md alone, whole or damaged.

The cubins are ELF files with a kernel's parameter records and no code: all that the loader,
the reader and the fake driver look at. Being a second writer, this also holds the format
page against ``aot.build.writer``.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aot.manifest import (
    FORMAT,
    FORMAT_VERSION,
    LAUNCH_ABI,
    Arg,
    Binary,
    Bound,
    Const,
    ConstexprArg,
    CubinRef,
    Entry,
    Kernel,
    Manifest,
    Missing,
    Options,
    Pack,
    ParamInfo,
    PointerArg,
    Provenance,
    ScalarArg,
    TableRef,
    Variant,
    encode,
    encode_manifest,
)

HEADER = b"aotpack\0" + (1).to_bytes(4, "little") + bytes(4)
SIZES = {"i1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "fp16": 2, "bf16": 2, "i32": 4, "u32": 4, "fp32": 4}
OPTIONS = Options(num_warps=4, num_stages=3, num_ctas=1, fp_fusion=False)


def pointer(name: str, dtype: str = "float32", align: int = 16) -> PointerArg:
    """A pointer argument of a variant."""
    return PointerArg(name=name, type=f"*{dtype}", dtype=dtype, align=align)  # type: ignore[arg-type]


def scalar(name: str, type_: str = "i32", claim: str = "any") -> ScalarArg:
    """A scalar argument of a variant."""
    return ScalarArg(name=name, type=type_, claim=claim)  # type: ignore[arg-type]


def constexpr(name: str, value: Const) -> ConstexprArg:
    """A constexpr of a variant."""
    return ConstexprArg(name=name, value=value)


def variant(*args: Arg, kernel: str = "k", target: str = "sm_90", **fields: Any) -> Variant:
    """A variant; ``fields``: axes, bounds as (of, max) pairs, options as keywords to change."""
    options = {name: getattr(OPTIONS, name) for name in OPTIONS.__struct_fields__}
    return Variant(
        kernel=kernel,
        target=target,
        axes=fields.pop("axes", {}),
        args=args,
        bounds=tuple(Bound(of=of, max=most) for of, most in fields.pop("bounds", ())),
        options=Options(**(options | fields)),
    )


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A kernel to write. ``binary`` changes fields of every binary, ``symbol`` and ``salt`` its cubins."""

    name: str = "k"
    variants: Sequence[Variant]
    params: Sequence[ParamInfo] = ()
    grid: tuple[str, ...] | None = None
    binary: dict[str, Any] = field(default_factory=dict)

    def infos(self) -> tuple[ParamInfo, ...]:
        """The parameters as given, or as the first variant has them, without defaults."""
        kinds = {PointerArg: "pointer", ScalarArg: "scalar", ConstexprArg: "constexpr"}
        first = self.variants[0].args
        made = (ParamInfo(name=a.name, kind=kinds[type(a)]) for a in first)  # type: ignore[arg-type]
        return tuple(self.params) or tuple(made)


def param_records(variant: Variant, hidden: int = 2) -> list[tuple[int, int]]:
    """(offset, size) of each parameter, laid out as the compiler does: each at its natural alignment."""
    records = []
    end = 0
    sizes = [8 if isinstance(a, PointerArg) else SIZES.get(a.type, 8) for a in variant.launch_args]
    for size in [*sizes, *[8] * hidden]:
        offset = -(-end // size) * size
        records.append((offset, size))
        end = offset + size
    return records


def cubin(symbol: str, params: Sequence[tuple[int, int]], salt: bytes = b"") -> bytes:
    """An ELF file for a CUDA machine whose section ``.nv.info.<symbol>`` records ``params``."""
    info = b"".join(
        struct.pack("<BBHIHHI", 4, 0x17, 12, 0, ordinal, offset, size << 18 | 0x1F000)
        for ordinal, (offset, size) in reversed(list(enumerate(params)))
    )
    contents = [(b"", b""), (f".nv.info.{symbol}".encode(), info), (f".text.{symbol}".encode(), salt)]
    strings = b"".join(name + b"\0" for name, _ in contents) + b".shstrtab\0"
    contents.append((b".shstrtab", strings))
    body = b""
    headers = b""
    for index, (name, data) in enumerate(contents):
        at = strings.index(name + b"\0") if name else 0
        kind = 0 if index == 0 else 3 if index == 3 else 1
        headers += struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, 64 + len(body), len(data), 0, 0, 1, 0)
        body += data
    body += bytes(-len(body) % 8)
    ident = b"\x7fELF" + bytes([2, 1, 1, 0x33, 7]) + bytes(7)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), 90, 64, 0, 0, 64, len(contents), len(contents) - 1
    )
    return header + body + headers


def make_bundle(
    path: Path,
    *drafts: Draft,
    codec: str = "zlib",
    edit_entries: Callable[[list[Any]], object] | None = None,
    edit_manifest: Callable[[dict[str, Any]], object] | None = None,
    missing: tuple[Missing, ...] = (),
) -> Path:
    """Write a bundle of ``drafts`` to ``path`` and return it.

    ``edit_entries`` and ``edit_manifest`` change a table's or the manifest's JSON before hashes
    and digest are taken: a bundle that is wrong and knows it not.
    """
    path.mkdir(parents=True)
    packs: list[Pack] = []
    tables: dict[str, list[TableRef]] = {draft.name: [] for draft in drafts}
    for target in sorted({v.target for draft in drafts for v in draft.variants}):
        cubins: dict[str, bytes] = {}
        made: list[tuple[Draft, Variant, bytes]] = []
        for draft in drafts:
            for chosen in (v for v in draft.variants if v.target == target):
                made.append((draft, chosen, _cubin_of(draft, chosen)))
                cubins[hashlib.sha256(made[-1][2]).hexdigest()] = made[-1][2]
        data = HEADER
        refs: dict[str, CubinRef] = {}
        for sha256, raw in sorted(cubins.items()):
            stored = zlib.compress(raw, 9) if codec == "zlib" else raw
            refs[sha256] = CubinRef(
                sha256=sha256,
                offset=len(data),
                size=len(stored),
                raw_size=len(raw),
                codec=codec,  # type: ignore[arg-type]
            )
            data += stored
        groups: dict[tuple[str, tuple[str, ...]], list[Entry]] = {}
        for draft, chosen, raw in made:
            ref = refs[hashlib.sha256(raw).hexdigest()]
            group = groups.setdefault((draft.name, chosen.types), [])
            group.append(Entry(variant=chosen, binary=_binary(draft, chosen, ref)))
        for (name, types), entries in groups.items():
            values = json.loads(encode(entries))
            if edit_entries is not None:
                edit_entries(values)
            text = json.dumps(values).encode()
            stored = zlib.compress(text, 9)
            tables[name].append(
                TableRef(
                    target=target,
                    types=types,
                    count=len(entries),
                    offset=len(data),
                    size=len(stored),
                    raw_size=len(text),
                    sha256=hashlib.sha256(text).hexdigest(),
                )
            )
            data += stored
        file = f"{target}.{hashlib.sha256(data).hexdigest()[:16]}.pack"
        (path / file).write_bytes(data)
        packs.append(Pack(target=target, file=file, size=len(data), cubins=len(cubins)))
    manifest = Manifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        launch_abi=LAUNCH_ABI,
        digest="",
        provenance=Provenance(aot="0.1.0", triton="3.9.0", ptxas="13.4", environment={}, specs={}),
        variants=sum(len(draft.variants) for draft in drafts),
        packs=tuple(packs),
        kernels=tuple(_kernel(draft, tables[draft.name]) for draft in drafts),
        missing=missing,
    )
    (path / "manifest.json").write_bytes(encode_manifest(manifest))
    if edit_manifest is not None:
        rewrite_manifest(path, edit_manifest)
    return path


def rewrite_manifest(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest's JSON and give it the digest of what it then holds."""
    file = path / "manifest.json"
    value = json.loads(file.read_bytes())
    edit(value)
    value["digest"] = ""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    value["digest"] = hashlib.sha256(text.encode()).hexdigest()
    file.write_text(json.dumps(value))


def pack_file(path: Path, target: str = "sm_90") -> Path:
    """The pack of ``target``."""
    return next(path.glob(f"{target}.*.pack"))


def _symbol(draft: Draft) -> str:
    return str(draft.binary.get("symbol", f"{draft.name}_kernel"))


def _cubin_of(draft: Draft, chosen: Variant) -> bytes:
    """Variants differ in their bytes, unless the draft gives one ``salt`` for all."""
    salt = draft.binary.get("salt", encode(chosen))
    records = param_records(chosen, draft.binary.get("hidden", 2))
    return cubin(_symbol(draft), records, salt)


def _binary(draft: Draft, chosen: Variant, ref: CubinRef) -> Binary:
    fields: dict[str, Any] = {
        "params": tuple(param_records(chosen, draft.binary.get("hidden", 2))),
        "hidden": 2,
        "shared": 0,
        "registers": 32,
        "local": 0,
        "scratch": (0, 1),
    }
    fields |= {k: v for k, v in draft.binary.items() if k not in ("salt", "symbol")}
    return Binary(symbol=_symbol(draft), cubin=ref, **fields)


def _kernel(draft: Draft, refs: Iterable[TableRef]) -> Kernel:
    return Kernel(
        name=draft.name,
        params=draft.infos(),
        grid=draft.grid,
        source="kernels.py:k",
        source_sha256="0" * 64,
        tables=tuple(refs),
    )
