"""Which bundles serve, in which order, and what is left out and why; no driver is asked."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundlemaker import make_bundle, rewrite_manifest
from loaderscripts import simple

import aot
from aot import manifest
from aot.errors import BundleError, KernelMiss, NoBundleError
from aot.loader import discovery


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No bundle is named, and what a test finds is forgotten."""
    monkeypatch.delenv("AOT_BUNDLE_PATH", raising=False)
    monkeypatch.setattr(discovery, "_search", discovery._Search(None))
    monkeypatch.setattr(discovery, "_opened", {})
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("shipped"):
            del sys.modules[name]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Install packages: ``package(name, value, source)`` writes a distribution whose entry point
    ``name`` has ``value``, and module ``shipped_<name>`` with ``source``; returns the module's folder."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def install(name: str, value: str, source: str = "") -> Path:
        info = site / f"{name}-1.2+cu130.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2+cu130\n")
        (info / "entry_points.txt").write_text(f"[aot.bundles]\n{name} = {value}\n")
        folder = site / f"shipped_{name}"
        folder.mkdir()
        (folder / "__init__.py").write_text(source)
        return folder

    return install


def bundle(path: Path, *names: str) -> Path:
    """A bundle with kernels of these names."""
    import dataclasses

    drafts = []
    for name in names or ("k",):
        draft = simple(kernel=name)
        drafts.append(dataclasses.replace(draft, name=name))
    return make_bundle(path, *drafts)


def paths(*found: object) -> list[Path]:
    return [b.reader.path for b in (found or discovery.default_bundles())]


def reasons() -> list[str]:
    return [d.reason for d in discovery.decisions() if d.reason is not None]


def test_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Callable[..., Path]) -> None:
    """Field case C14: ``aot.use``, then each entry of the variable, then entry points by name."""
    used, first, second, last = (bundle(tmp_path / name) for name in ("u", "z", "a", "l"))
    package("beta", "shipped_beta:PATH", f"PATH = {str(last)!r}")
    folder = package("alpha", "shipped_alpha")
    shutil.copytree(bundle(tmp_path / "made"), folder, dirs_exist_ok=True)
    monkeypatch.setenv("AOT_BUNDLE_PATH", os.pathsep.join([str(first), "", str(second)]))
    opened = aot.use(used)
    assert opened is discovery.default_bundle()
    assert paths() == [used, first, second, folder, last]
    assert [d.source for d in discovery.decisions()] == [
        "aot.use",
        "AOT_BUNDLE_PATH",
        "AOT_BUNDLE_PATH",
        "entry point 'alpha' of alpha 1.2+cu130",
        "entry point 'beta' of beta 1.2+cu130",
    ]
    assert reasons() == []
    assert [kernel._bundle.reader.path for kernel in discovery.find_kernels("k")] == paths()


def test_a_step_is_taken_when_it_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Callable[..., Path]
) -> None:
    """While the bundles before it serve, no package's code runs and the variable is not read."""
    package("noisy", "shipped_noisy:path", "raise SystemExit('imported')")
    aot.use(bundle(tmp_path / "u", "k"))
    monkeypatch.setenv("AOT_BUNDLE_PATH", str(bundle(tmp_path / "v", "k", "other")))
    assert discovery.serve("k", lambda kernel: kernel.name) == "k"
    assert discovery.serve("other", lambda kernel: kernel.name) == "other"
    assert "shipped_noisy" not in sys.modules
    assert reasons() == ["shipped_noisy:path failed with SystemExit: imported"]


def test_entries_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An entry is a bundle, or a folder that holds bundles, by name; anything else is left out."""
    folder = tmp_path / "all"
    inside = [bundle(folder / name) for name in ("b", "a")]
    (folder / "notes").mkdir()
    (folder / "file").touch()
    empty, none, file = tmp_path / "empty", tmp_path / "none", folder / "file"
    empty.mkdir()
    monkeypatch.setenv("AOT_BUNDLE_PATH", os.pathsep.join(map(str, [none, file, empty, folder, inside[0]])))
    assert paths() == [inside[1], inside[0]]
    assert reasons() == [
        f"{none}: found nothing, wanted a bundle (a directory with manifest.json)",
        f"{file}: found a file, wanted a bundle (a directory with manifest.json)",
        f"{empty}: found no manifest.json in it or in a folder in it, wanted a bundle or bundles",
        f"{inside[0]}: this bundle was found before, through AOT_BUNDLE_PATH",
    ]
    assert [d.duplicate for d in discovery.decisions()] == [False] * 5 + [True]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3


def test_damaged_bundles_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Field cases C04, C14 and C16: too new, too old, cut, changed, a link for a manifest; one is left."""
    made = {name: bundle(tmp_path / name) for name in ("new", "abi", "old", "cut", "link", "good")}
    rewrite_manifest(made["new"], lambda m: m.update(format_version=2))
    rewrite_manifest(made["abi"], lambda m: m.update(launch_abi=2))
    rewrite_manifest(made["old"], lambda m: m.update(format_version=0))
    text = (made["cut"] / "manifest.json").read_text()
    (made["cut"] / "manifest.json").write_text(text[: len(text) // 2])
    (made["link"] / "manifest.json").unlink()
    (made["link"] / "manifest.json").symlink_to(made["good"] / "manifest.json")
    monkeypatch.setenv("AOT_BUNDLE_PATH", os.pathsep.join(map(str, made.values())))
    with caplog.at_level(logging.INFO, "aot"):
        assert paths() == [made["good"]]
    found = reasons()
    where = {name: path / "manifest.json" for name, path in made.items()}
    assert found[:3] == [
        f"{where['new']}: found format_version 2, this version reads 1; upgrade aot-kernels",
        f"{where['abi']}: found launch_abi 2, this version reads 1; upgrade aot-kernels",
        f"{where['old']}: found format_version 0, this version reads 1; build the bundle again",
    ]
    assert found[3].startswith(f"{where['cut']}: ")
    assert found[4] == f"{where['link']}: found a symbolic link, wanted a regular file of a bundle"
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        *(("WARNING", f"bundle left out: AOT_BUNDLE_PATH: {reason}") for reason in found),
        ("INFO", f"bundle found through AOT_BUNDLE_PATH: {made['good']}"),
    ]


def test_ranges_of_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case C14: every format and ABI of the range is read, whatever release wrote it."""
    made = bundle(tmp_path / "b")
    monkeypatch.setattr(manifest, "FORMAT_VERSION", 3)
    monkeypatch.setattr(manifest, "LAUNCH_ABI", 2)
    versions = ((1, 1, "0.1.0"), (2, 2, "9.9.9+cu130"), (3, 1, "0.2.0.post1"), (3, 2, "1.dev0"))
    for version, abi, release in versions:

        def edit(m: dict[str, Any], new: tuple[int, int] = (version, abi), release: str = release) -> None:
            m["format_version"], m["launch_abi"] = new
            m["provenance"]["aot"] = release

        rewrite_manifest(made, edit)
        with aot.open(made) as opened:
            assert opened.kernels == ("k",)
    rewrite_manifest(made, lambda m: m.update(format_version=4))
    with pytest.raises(BundleError) as raised:
        aot.open(made)
    assert str(raised.value) == (
        f"{made / 'manifest.json'}: found format_version 4, this version reads 1 to 3; upgrade aot-kernels"
    )


@pytest.mark.parametrize(
    ("value", "source", "reason"),
    [
        ("shipped_p:path", "import not_installed", "ModuleNotFoundError: No module named 'not_installed'"),
        ("shipped_p:path", "", "AttributeError: module 'shipped_p' has no attribute 'path'"),
        ("shipped_p:path", "path = None", "TypeError: found None, wanted the path of a bundle"),
        ("shipped_p:path", "def path(): return b'/x'", "TypeError: found b'/x', wanted the path of a bundle"),
        ("shipped_p:path", "def path(): raise OSError('no disk')", "OSError: no disk"),
        ("shipped_p:path", "path = ", None),
        ("gone", "", "ModuleNotFoundError: found no module 'gone'"),
        ("gone.bundle", "", "ModuleNotFoundError: No module named 'gone'"),
        ("sys", "", "TypeError: module 'sys' has no folder"),
    ],
)
def test_broken_packages_are_left_out(
    package: Callable[..., Path], tmp_path: Path, value: str, source: str, reason: str | None
) -> None:
    """Field case C14: nothing is raised, and the bundle that is sound serves."""
    package("p", value, source)
    used = aot.use(bundle(tmp_path / "u"))
    assert discovery.default_bundles() == (used,)
    (found,) = reasons()
    assert found.startswith(f"{value} failed with ")
    assert reason is None or found == f"{value} failed with {reason}"


def test_forms_of_an_entry_point(package: Callable[..., Path], tmp_path: Path) -> None:
    """A module's folder or a folder of bundles in it, a path, a function, an attribute of an object."""
    made = [bundle(tmp_path / name) for name in ("b", "c", "d")]
    data = package("a", "shipped_a.data", "raise_if_run = 1") / "data"
    inside = bundle(data / "one")
    (data / "__init__.py").write_text("raise RuntimeError('a bundle is data')")
    package("b", "shipped_b:path", f"import pathlib\npath = pathlib.Path({str(made[0])!r})")
    package("c", "shipped_c:path", f"def path(): return {str(made[1])!r}")
    package("d", "shipped_d:Where.path", f"class Where:\n    path = staticmethod(lambda: {str(made[2])!r})")
    assert reasons() == []
    assert paths() == [inside, *made]
    assert "shipped_a.data" not in sys.modules


def test_a_package_that_asks_for_kernels_itself(
    package: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for its bundle, it gets the bundles before it, and neither deadlock nor recursion."""
    made = bundle(tmp_path / "b")
    monkeypatch.setenv("AOT_BUNDLE_PATH", str(bundle(tmp_path / "v")))
    ask = "import aot.loader as l\ndef path():\n    assert len(l.default_bundles()) == 1\n"
    source = f"{ask}    return {str(made)!r}"
    package("b", "shipped_b:path", source)
    assert paths() == [tmp_path / "v", made]
    assert reasons() == []


def test_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Callable[..., Path]
) -> None:
    """Field case C14: an error only now, and it lists every decision."""
    with pytest.raises(NoBundleError) as raised:
        discovery.default_bundle()
    assert str(raised.value) == (
        "found no bundle: AOT_BUNDLE_PATH is not set, aot.use was not called and no installed package has an "
        'entry point of group aot.bundles; wanted aot.use("path/to/bundle"), or the path in that variable'
    )
    monkeypatch.setenv("AOT_BUNDLE_PATH", f"{tmp_path / 'x'}{os.pathsep}{tmp_path / 'y'}")
    package("p", "shipped_p:path", "path = 1")
    with pytest.raises(NoBundleError):
        discovery.default_bundle()
    discovery.refresh()
    for ask in (
        discovery.default_bundle,
        discovery.default_bundles,
        lambda: list(discovery.find_kernels("k")),
    ):
        with pytest.raises(NoBundleError) as raised:
            ask()
        wanted = "found nothing, wanted a bundle (a directory with manifest.json)"
        assert str(raised.value).splitlines() == [
            "found no bundle that can be used, wanted one; looked at:",
            f"  AOT_BUNDLE_PATH: {tmp_path / 'x'}: {wanted}",
            f"  AOT_BUNDLE_PATH: {tmp_path / 'y'}: {wanted}",
            "  entry point 'p' of p 1.2+cu130: shipped_p:path failed with TypeError: found 1, wanted the "
            "path of a bundle",
        ]


def test_when_the_variable_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first use, and again after ``refresh`` and ``use``; bundles that did not change stay open."""
    first, second = bundle(tmp_path / "a"), bundle(tmp_path / "b")
    monkeypatch.setenv("AOT_BUNDLE_PATH", str(first))
    opened = discovery.default_bundle()
    monkeypatch.setenv("AOT_BUNDLE_PATH", f"{second}{os.pathsep}{first}")
    assert discovery.default_bundle() is opened
    discovery.refresh()
    assert paths() == [second, first]
    assert discovery.default_bundles()[1] is opened
    used = aot.use(first)
    assert used is opened
    assert paths() == [first, second]
    rewrite_manifest(second, lambda m: m["provenance"].update(aot="0.2.0"))
    before_change = discovery.default_bundles()[1]
    discovery.refresh()
    assert discovery.default_bundles()[0] is used
    assert discovery.default_bundles()[1] is not before_change
    used.close()
    assert aot.use(first) is not used


def test_searching_again_leaves_no_files_open(tmp_path: Path) -> None:
    made = bundle(tmp_path / "a")
    aot.use(made)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        aot.use(made)
    assert len(os.listdir("/proc/self/fd")) == before


def test_use_raises_what_is_wrong(tmp_path: Path) -> None:
    """A path that the program itself names is no decision but an error, and changes nothing."""
    used = aot.use(bundle(tmp_path / "a"))
    with pytest.raises(NoBundleError, match="found nothing"):
        aot.use(tmp_path / "none")
    assert discovery.default_bundle() is used


def test_the_first_that_serves_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Field case C14: two bundles of one kernel; a miss goes to the next, and all misses make one error."""
    first, second = bundle(tmp_path / "a", "k", "one"), bundle(tmp_path / "b", "k", "two")
    monkeypatch.setenv("AOT_BUNDLE_PATH", f"{first}{os.pathsep}{second}")

    def only(wanted: Path) -> Callable[..., str]:
        def call(kernel: aot.loader.Kernel) -> str:
            path = kernel._bundle.reader.path
            if path != wanted:
                raise KernelMiss(f"not in {path}", kernel="k", reasons=(path.name,), kind="dtype")
            return path.name

        return call

    with caplog.at_level(logging.INFO, "aot"):
        assert discovery.serve("k", only(second)) == "b"
    assert f"{second} is asked after {first} for kernels that both have: k" in caplog.messages
    assert discovery.serve("k", only(first)) == "a"
    assert discovery.serve("two", only(second)) == "b"
    with pytest.raises(KernelMiss) as raised:
        discovery.serve("k", only(tmp_path))
    assert str(raised.value).splitlines() == [
        "kernel 'k': none of 2 bundles serves the call:",
        f"not in {first}",
        f"not in {second}",
    ]
    assert (raised.value.reasons, raised.value.kind) == (("a", "b"), "dtype")
    with pytest.raises(KernelMiss) as raised:
        discovery.serve("ones", only(first))
    assert str(raised.value) == (
        f"no bundle has kernel 'ones': {first} has k, one; {second} has k, two; did you mean 'one'?; "
        "build the spec that has it, and put that bundle on AOT_BUNDLE_PATH"
    )
    assert raised.value.kind == "kernel"


def test_threads_at_the_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen threads get the same bundles, opened once."""
    monkeypatch.setenv("AOT_BUNDLE_PATH", os.pathsep.join(str(bundle(tmp_path / n)) for n in "abc"))
    start, found = threading.Barrier(16), []

    def work() -> None:
        start.wait()
        found.append(discovery.default_bundles())

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert set(found) == {discovery.default_bundles()}
    assert paths() == [tmp_path / n for n in "abc"]
