"""Zlib and JSON in the C API, beside those of Python."""

from __future__ import annotations

import hashlib
import json
import random
import re
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from capi import Probe
from hypothesis import example, given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    with Probe() as running:
        yield running


# Decompression.


STRATEGIES = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=3000),
        st.lists(st.sampled_from([b"abc", b"\0" * 300, b"kernel", b"x"]), max_size=200).map(b"".join),
        st.builds(
            lambda n, seed: random.Random(seed).randbytes(n), st.integers(0, 70_000), st.integers(0, 99)
        ),
    ),
    st.integers(0, 9),
    st.sampled_from(
        [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED]
    ),
    st.integers(9, 15),
    st.integers(0, 2**32),
)
@example(data=b"", level=9, strategy=0, window=15, chance=0)
def test_zlib_streams(probe: Probe, data: bytes, level: int, strategy: int, window: int, chance: int) -> None:
    """Whole ones decompress; of those with a flipped bit C takes what zlib takes."""
    packer = zlib.compressobj(level, zlib.DEFLATED, window, 8, strategy)
    stream = packer.compress(data) + packer.flush()
    assert probe("inflate", len(data), stream.hex()) == ["ok", hashlib.sha256(data).hexdigest()]
    if data:
        assert probe("inflate", len(data) - 1, stream.hex()) == ["error", "another size"]
    assert probe("inflate", len(data) + 1, stream.hex()) == ["error", "another size"]
    assert probe("inflate", len(data), stream.hex() + "00") == ["error", "another size"]
    assert probe("inflate", len(data), stream[:-1].hex())[0] == "error"
    for bit in (chance % (8 * len(stream)), chance % 160 % (8 * len(stream))):
        changed = bytearray(stream)
        changed[bit // 8] ^= 1 << bit % 8
        unpacker = zlib.decompressobj()
        try:
            found = unpacker.decompress(bytes(changed))
        except zlib.error:
            found = None
        sound = found is not None and unpacker.eof and not unpacker.unused_data and len(found) == len(data)
        assert (probe("inflate", len(data), bytes(changed).hex())[0] == "ok") == sound


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=2, max_size=60), st.booleans())
def test_noise_is_no_zlib_stream(probe: Probe, noise: bytes, dynamic: bool) -> None:
    """Behind a right header, where every code is one that chance made."""
    data = b"\x78\x9c" + bytes([noise[0] & 0xF8 | (5 if dynamic else 3)]) + noise[1:]
    assert probe("inflate", 1000, data.hex())[0] == "error"


def _stream_of_codes(n_literals: int, n_distances: int) -> bytes:
    """A zlib stream of "A" whose block has so many codes, all but two and one of them unused."""
    bits: list[int] = []

    def put(value: int, count: int) -> None:
        bits.extend(value >> i & 1 for i in range(count))

    def zeros(count: int) -> None:
        # The code of "up to 138 times no code" is 1, that of "a code of length 1" is 0.
        while count > 0:
            part = min(count, 138) if min(count, 138) >= 11 and not 0 < count - 138 < 11 else 11
            put(1, 1)
            put(part - 11, 7)
            count -= part

    put(1, 1)
    put(2, 2)
    put(n_literals - 257, 5)
    put(n_distances - 1, 5)
    put(14, 4)
    for symbol in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1):
        put(1 if symbol in (18, 1) else 0, 3)
    zeros(65)
    put(0, 1)
    zeros(190)
    put(0, 1)
    zeros(n_literals - 257)
    put(0, 1)
    zeros(n_distances - 1)
    put(0, 1)
    put(1, 1)
    packed = bytes(sum(bit << i for i, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))
    return b"\x78\x9c" + packed + zlib.adler32(b"A").to_bytes(4, "big")


@pytest.mark.parametrize("n_literals", [268, 286, 287, 288])
@pytest.mark.parametrize("n_distances", [1, 12, 30, 31, 32])
def test_the_most_codes(probe: Probe, n_literals: int, n_distances: int) -> None:
    """286 and 30, as in zlib; there is room for no more."""
    stream = _stream_of_codes(n_literals, n_distances)
    try:
        sound = zlib.decompress(stream) == b"A"
    except zlib.error:
        sound = False
    assert sound == (n_literals <= 286 and n_distances <= 30)
    assert (probe("inflate", 1, stream.hex())[0] == "ok") == sound


# Canonical JSON.

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_canonical_json(probe: Probe, value: Any, ascii_only: bool, indent: int | None) -> None:
    """Any spelling of a value has the canonical form that the writer hashes."""
    wanted = msgspec.json.encode(value, order="sorted")
    assert probe("json", wanted.hex()) == ["ok", hashlib.sha256(wanted).hexdigest()]
    if not any(c in wanted for c in b".eE"):
        # Python's json spells floats in another way.
        text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
        assert probe("json", text.encode().hex()) == ["ok", hashlib.sha256(wanted).hexdigest()]


NO_JSON = (
    *(
        b"",
        b" ",
        b"{",
        b"[",
        b'"',
        b"[1",
        b"[1,",
        b"[1,]",
        b"[,1]",
        b'{"a"',
        b'{"a":',
        b'{"a":1',
        b'{"a":1,}',
    ),
    *(b"{1:2}", b"{a:1}", b"nul", b"nulll", b"True", b"NaN", b"-", b"+1", b"01", b"-01", b"1.", b".5"),
    *(b"1e", b"1e+", b"0x1", b"1 2", b"[1]]", b"1e999", b"'a'", b'"\t"', b'"\x7f', b'"\\x"', b'"\\u12"'),
    *(b'"\\u12g4"', b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\u0041"', b'"\xff"', b'"\xc0\x80"', b'"\xf5"'),
    *(
        b'"\xed\xa0\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\xe2\x82"',
        b'"\\',
        b'"\\u',
        b"\xef\xbb\xbf1",
        b'"\\u0000"',
    ),
    *(b"[" * 100 + b"]" * 100, b'{"a":1,"a":2}', b'{"b":1,"a":2,"b":3}', b"\0", b"1\0", b'"a\0b"', b"//1"),
)


@pytest.mark.parametrize("text", NO_JSON)
def test_what_is_no_json(probe: Probe, text: bytes) -> None:
    """Refused at a byte of the text, without a read beyond its end."""
    assert re.match(r"here: found .* at byte \d+ of the JSON; ", probe.fault("json", text.hex()))


@settings(max_examples=300, deadline=None)
@given(VALUES, st.data())
def test_damaged_json(probe: Probe, value: Any, data: st.DataObject) -> None:
    """A changed byte: C takes what msgspec takes, but for a name that stands twice and a zero."""
    text = bytearray(msgspec.json.encode(value))
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        msgspec.json.decode(bytes(text))
        sound = True
    except (msgspec.DecodeError, UnicodeDecodeError):
        sound = False
    found = probe("json", bytes(text).hex())
    if found[0] == "error" and re.search("a name twice|an escape", found[-1]):
        return
    assert (found[0] == "ok") == sound, bytes(text)
