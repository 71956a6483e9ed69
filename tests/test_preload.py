"""Preloading: what a filter means, what the driver is asked, and what is left when a bundle is closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bundlemaker import Draft, constexpr, make_bundle, pack_file, pointer, scalar, variant
from fakecuda import run_script
from loaderscripts import Runner

import aot
from aot.errors import UsageError
from aot.loader.ops.table import PUBLIC, kernels_of
from aot.loader.preload_filter import read_choice

OPS = {"reduce_rows": ("sum", "amax", "any"), "argreduce_rows": ("argmax", "argmin")}


def reductions(*targets: str) -> list[Draft]:
    """The kernels of OPS: a variant for each target, op, dtype and bucket of columns."""
    drafts = []
    for name, ops in OPS.items():
        made = [
            variant(
                pointer("x", dtype),
                pointer("out", "int64" if name == "argreduce_rows" else "float32"),
                scalar("n"),
                constexpr("OP", op),
                kernel=name,
                target=target,
                axes={"op": op, "dtype": dtype, **({} if most is None else {"n": most})},
                bounds=() if most is None else [("n", most)],
            )
            for target in targets or ("sm_90",)
            for op in ops
            for dtype in ("float16", "float32")
            for most in (16, None)
        ]
        drafts.append(Draft(name=name, variants=made))
    return drafts


PRELOAD = """
        def report(**how):
            done = bundle.preload(**how)
            return [done.loaded, done.already, list(done.devices)]
        bundle = aot.open(PATH)
"""


@pytest.mark.parametrize("threads", [1, 4])
def test_all_of_a_bundle(run: Runner, threads: int) -> None:
    """Every cubin once, with its size and the progress; again, nothing; and then calls load nothing."""
    result = run(
        PRELOAD
        + f"""
        seen = []
        done = bundle.preload(progress=lambda *at: seen.append(at), threads={threads})
        again = report(threads={threads})
        tables = [t for k in bundle.reader.manifest.kernels for t in k.tables]
        size = sum(e.binary.cubin.raw_size for t in tables for e in bundle.reader.table(t))
        bundle.kernel("reduce_rows")[(1,)](Array(), Array(), 20, OP="amax")
        answer([done.loaded, done.already, list(done.devices), done.milliseconds > 0, done.bytes == size,
                seen, again, bundle.stats()["loads"], aot.stats()["kernels"]["argreduce_rows"]["loads"],
                "torch" in sys.modules])
        """,
        *reductions(),
    )
    progress = [[done, 20] for done in range(1, 21)]
    again = [0, 20, ["cuda:0"]]
    assert result.value == [20, 0, ["cuda:0"], True, True, progress, again, 20, 8, False]
    assert len(result.named("cuLibraryLoadData")) == 20
    assert len(result.launches) == 1


@pytest.mark.parametrize(
    ("how", "loaded"),
    [
        ('kernels="reduce_rows"', 12),
        ('kernels=["argreduce_rows"], dtypes=["half"]', 4),
        ('dtypes="float32"', 10),
        ('dtypes=["float16", "float32"]', 20),
        ('ops="sum"', 4),
        ('ops=["mean", "sum"]', 4),
        ('ops="max"', 8),
        ('ops="argmin", kernels="reduce_rows", dtypes="float32"', 8),
        ('axes={"op": ["amax", "argmax"]}', 8),
        ('axes={"n": 16}', 10),
        ('axes={"n": None, "dtype": "float16"}', 5),
        ('axes={"n": [16, None]}, ops="any"', 4),
    ],
)
def test_filters(driver: Path, tmp_path: Path, how: str, loaded: int) -> None:
    path = make_bundle(tmp_path / "b", *reductions())
    result = run_script(driver, PRELOAD + f"        answer(report({how}))", path)
    assert result.value == [loaded, 0, ["cuda:0"]]
    assert len(result.named("cuLibraryLoadData")) == loaded


def test_torch_names_dtypes_and_devices(run: Runner) -> None:
    result = run(
        "        import torch\n"
        + PRELOAD
        + """
        answer([report(dtypes=torch.float16, device=torch.device("cuda", 1)),
                report(dtypes=[torch.float16, torch.float32], device=torch.device("cuda"))])
        """,
        *reductions(),
        devices="9.0,9.0",
    )
    assert result.value == [[10, 0, ["cuda:1"]], [10, 10, ["cuda:0"]]]


ERRORS: list[tuple[str, str]] = [
    (
        'kernels="reduce_row"',
        "found no kernel 'reduce_row', wanted one of reduce_rows, argreduce_rows; "
        "did you mean 'reduce_rows'?",
    ),
    ('ops="summ"', f"found op 'summ', wanted one of {', '.join(PUBLIC)}; did you mean 'sum'?"),
    (
        'dtypes=["float31"]',
        "found dtype 'float31', wanted one of float16, bfloat16, ",
    ),
    ("dtypes=[3]", "found dtype 3, wanted torch's name of one, or a torch.dtype"),
    (
        'dtypes="float64"',
        "found dtype float64, which is the first pointer's in none of these kernels; "
        "wanted one of float16, float32",
    ),
    ('axes={"ops": "sum"}', "found axis 'ops', wanted one of dtype, n, op; did you mean 'op'?"),
    (
        'kernels="argreduce_rows", axes={"op": "sum"}',
        "found 'sum' for axis op, wanted one of 'argmax', 'argmin'",
    ),
    ('axes={"n": 17}', "found 17 for axis n, wanted one of 16"),
    ('axes={"n": True}', "found True for axis n, wanted one of 16"),
    ("kernels=[]", "found nothing to preload"),
    ("threads=0", "found threads = 0, wanted 1 or more"),
    ('device="cpu"', 'found device \'cpu\', wanted a number, "cuda:1", torch.device, "all" or None'),
    ("device=True", 'found device True, wanted a number, "cuda:1", torch.device, "all" or None'),
    ('device="cuda:x"', 'found device \'cuda:x\', wanted a number, "cuda:1", torch.device, "all" or None'),
    (
        'ops="sum", axes={"op": "amax"}',
        "found nothing to preload for cuda:0 (Fake GPU, capability 9.0): no variant of reduce_rows, "
        "built for sm_90, fits the device and the filter; leave out dtypes or axes, or build for the device",
    ),
    (
        "device=1",
        "found nothing to preload for cuda:1 (Fake GPU, capability 8.0): no variant of reduce_rows, "
        "argreduce_rows, built for sm_90, fits the device and the filter; leave out dtypes or axes, or "
        "build for the device",
    ),
]


def test_what_is_not_there_is_an_error(run: Runner) -> None:
    """Each names what was found and wanted; nothing is loaded, and the next preload is right."""
    result = run(
        PRELOAD
        + f"""
        calls = {[f"bundle.preload({how})" for how, _ in ERRORS]!r}
        found = [error(eval, call) for call in calls]
        loads = bundle.stats()["loads"]
        missing = error(bundle.preload, device=7)
        answer([found, loads, missing, report(ops="sum")])
        """,
        *reductions(),
        devices="9.0,8.0",
    )
    found, loads, missing, after = result.value
    for (how, wanted), (kind, message) in zip(ERRORS, found, strict=True):
        assert kind == "UsageError", (how, message)
        assert message.split(": ", 1)[-1].startswith(wanted) or message.startswith(wanted), (how, message)
    assert (loads, after) == (0, [4, 0, ["cuda:0"]])
    assert missing == [
        "DriverError",
        "found device cuda:7, wanted one of the 2 that the driver shows; look at CUDA_VISIBLE_DEVICES",
    ]


def test_an_op_that_the_bundle_has_no_kernel_of(tmp_path: Path) -> None:
    path = make_bundle(tmp_path / "b", Draft(variants=[variant(pointer("x"))]))
    with aot.open(path) as bundle, pytest.raises(UsageError) as refused:
        read_choice(bundle, "sum", None, None, None)
    assert str(refused.value) == (
        f"{path}: found no kernel of op 'sum', wanted one of reduce_rows, reduce_cols, reduce_strided; "
        "it has k"
    )


def test_every_public_op_has_kernels() -> None:
    """The table that the operations launch by is the one that a preload goes by."""
    assert set(PUBLIC) == {
        "all",
        "amax",
        "amin",
        "any",
        "argmax",
        "argmin",
        "max",
        "mean",
        "min",
        "prod",
        "sum",
    }
    assert kernels_of("max") == {
        f"{prefix}_{layout}": {code}
        for prefix, code in (("reduce", "amax"), ("argreduce", "argmax"))
        for layout in ("rows", "cols", "strided")
    }
    assert kernels_of("nothing") == {}


def test_devices_of_two_kinds(run: Runner) -> None:
    """Each device gets the best of its targets; a cubin is loaded once, its attributes are each device's."""
    wide = variant(pointer("x"), scalar("n"))
    drafts = [
        Draft(
            variants=[
                variant(pointer("x"), scalar("n"), target="sm_80"),
                wide,
                variant(pointer("x"), scalar("n"), target="sm_90a"),
                # Only the plain target has this dtype.
                variant(pointer("x", "float16"), scalar("n")),
            ],
            binary={"shared": 100_000},
        )
    ]
    result = run(
        PRELOAD
        + """
        first = report(device="all")
        for device in (0, 1, 2):
            bundle.kernel("k")[(1,)](Array(device=device), 16)
        answer([first, report(device=2), bundle.stats()["loads"], error(bundle.preload, device=3)[0]])
        """,
        *drafts,
        devices="9.0,8.0,9.0,7.5",
    )
    assert result.value == [[3, 0, ["cuda:0", "cuda:1", "cuda:2"]], [0, 2, ["cuda:2"]], 3, "UsageError"]
    attributes = [call["device"] for call in result.named("cuKernelSetAttribute")]
    assert sorted(attributes) == [0, 0, 1, 2, 2]
    assert [launch["device"] for launch in result.launches] == [0, 1, 2]


def test_a_device_with_too_little_shared_memory(run: Runner) -> None:
    """What calls on a device cannot select is not loaded for it."""
    drafts = [
        Draft(
            name=name,
            variants=[variant(pointer("x"), kernel=name, target="sm_80")],
            binary={"shared": shared},
        )
        for name, shared in (("large", 150_000), ("small", 0))
    ]
    result = run(PRELOAD + "        answer([report(device=0), report(device=1)])", *drafts, devices="8.6,8.0")
    assert result.value == [[1, 0, ["cuda:0"]], [1, 1, ["cuda:1"]]]


CAPTURE = """
        class OnGpu(torch.Tensor):
            device = property(lambda self: torch.device("cuda", 0))
            def data_ptr(self):
                return (1 << 40) + 4096
        torch._C._cuda_getCurrentRawStream = lambda index: current
        torch.cuda.is_initialized = lambda: True
        torch.cuda.current_device = lambda: 0
        x = torch.empty(4).as_subclass(OnGpu)
"""


def test_preload_before_a_capture_and_in_it(run: Runner) -> None:
    """Field case C10: the refusal names a preload; with it, the capture needs no call before; in a
    capture preload itself is refused, and the driver is asked for nothing."""
    result = run(
        "        import torch\n"
        + PRELOAD
        + CAPTURE
        + """
        kernel = bundle.kernel("reduce_rows")
        current = 9
        refused = error(kernel[(1,)], x, x, 16, OP="sum")
        inside = error(bundle.preload)
        loads = bundle.stats()["loads"]
        current = 5
        exec(refused[1].split("begins: ")[1])
        current = 9
        answer([refused, inside, loads, error(kernel[(1,)], x, x, 16, OP="sum"), bundle.stats()["loads"]])
        """,
        *reductions(),
        capturing="9",
    )
    assert result.value == [
        [
            "LaunchError",
            "kernel 'reduce_rows' of target sm_90 is not loaded yet, and the stream is being captured; load "
            'it before the capture begins: bundle.preload(kernels=["reduce_rows"], dtypes=["float32"])',
        ],
        [
            "LaunchError",
            "a stream of cuda:0 (Fake GPU, capability 9.0) is being captured, and nothing can be loaded "
            "meanwhile; call preload before the capture begins",
        ],
        0,
        None,
        6,
    ]
    assert [launch["stream"] for launch in result.launches] == [9]


def test_a_capture_that_the_default_stream_waits_for(run: Runner) -> None:
    """The driver answers with an error of its own; nothing was loaded, and afterwards preload works."""
    result = run(
        PRELOAD + "        answer([error(bundle.preload), report()])",
        *reductions(),
        fail="cuStreamIsCapturing:906@1",
    )
    (kind, message), after = result.value
    assert kind == "DriverError"
    assert message.endswith(
        "a stream is being captured: preload the kernel, or call it once, before the capture begins"
    )
    assert after == [20, 0, ["cuda:0"]]


def test_two_threads_preload_and_others_launch(run: Runner) -> None:
    """Field case C08: one load each, whoever is first; the reports add up to the loads."""
    result = run(
        PRELOAD
        + """
        import threading
        start, reports, errors = threading.Barrier(16), [], []
        kernel = bundle.kernel("reduce_rows")
        def work(i):
            start.wait()
            try:
                if i % 2:
                    reports.append(report())
                else:
                    kernel[(1,)](Array(), Array(), 16, OP="sum")
            except BaseException as error:
                errors.append(repr(error))
        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        answer([errors, len(reports), {l + a for l, a, _ in reports} == {20}, sum(l for l, _, _ in reports),
                bundle.stats()["loads"]])
        """,
        *reductions(),
    )
    errors, done, complete, loaded, loads = result.value
    assert (errors, done, complete, loads) == ([], 8, True, 20)
    # A launch that was first with one cubin loaded that one itself.
    assert loaded in (19, 20)
    assert len(result.named("cuLibraryLoadData")) == 20
    assert len(result.launches) == 8


def test_a_load_that_fails(run: Runner) -> None:
    """The first error ends the preload; what was loaded stays, and the next one loads the rest."""
    result = run(
        PRELOAD + "        answer([error(bundle.preload), bundle.stats()['loads'], report()])",
        *reductions(),
        fail="cuLibraryLoadData:2@3",
    )
    (kind, message), loads, after = result.value
    assert (kind, loads) == ("DriverError", 3)
    assert "failed with CUDA_ERROR_OUT_OF_MEMORY (2) for kernel 'reduce_rows' of target sm_90" in message
    assert after == [18, 2, ["cuda:0"]]


@pytest.mark.parametrize("threads", [1, 4])
def test_a_damaged_cubin(driver: Path, tmp_path: Path, threads: int) -> None:
    """Field case C16: what was read ahead is checked as a call would; the process goes on."""
    path = make_bundle(tmp_path / "b", *reductions(), codec="none")
    with aot.open(path) as bundle:
        table = bundle.reader.kernels["reduce_rows"].tables[0]
        ref = bundle.reader.table(table)[3].binary.cubin
    file = pack_file(path)
    data = bytearray(file.read_bytes())
    data[ref.offset] ^= 1
    file.write_bytes(data)
    result = run_script(
        driver,
        PRELOAD
        + f"        answer([error(bundle.preload, threads={threads}), report(kernels='argreduce_rows')])",
        path,
    )
    (kind, message), after = result.value
    assert kind == "BundleError"
    assert f"cubin {ref.sha256[:12]} at {ref.offset}: found sha256 " in message
    assert after == [8, 0, ["cuda:0"]]


def test_what_progress_raises_ends_the_preload(run: Runner) -> None:
    result = run(
        PRELOAD
        + """
        class Enough(Exception):
            pass
        def stop(done, total):
            if done == 5:
                raise Enough
        from aot.loader.driver import get_driver
        first = error(bundle.preload, progress=stop)
        context = get_driver()._cu.current_context()[1]
        answer([first[0], context, report()])
        """,
        *reductions(),
    )
    assert result.value == ["Enough", 0, [15, 5, ["cuda:0"]]]


def test_a_closed_bundle(run: Runner) -> None:
    result = run(PRELOAD + "        bundle.close()\n        answer(error(bundle.preload))", *reductions())
    kind, message = result.value
    assert kind == "LaunchError"
    assert message.endswith("closed, wanted an open one to preload")


def test_fork(run: Runner) -> None:
    """Field case C09: a child forked before CUDA preloads and launches; one forked after it is told so, and
    its parent goes on."""
    result = run(
        PRELOAD
        + """
        def child(function):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(write, json.dumps(function()).encode())
                os._exit(0)
            status = os.waitpid(pid, 0)[1]
            return [status, json.loads(os.read(read, 10000))]

        def both():
            found = error(bundle.preload)
            launch = bundle.kernel("reduce_rows")[(1,)]
            return [found and found[0], error(launch, Array(), Array(), 16, OP="sum")]

        before = child(both)
        mine = both()
        after = child(both)
        answer([before, mine, after[0], after[1][0], after[1][1][0], both(), report()])
        """,
        *reductions(),
    )
    fine = [None, None]
    assert result.value == [[0, fine], fine, 0, "DriverError", "DriverError", fine, [0, 20, ["cuda:0"]]]


def test_fifty_times_opened_preloaded_and_closed(run: Runner) -> None:
    """Kernels stay in the driver for the life of the process and are shared by their sha256, so opening again
    loads nothing; files, memory and handles stay as they are after the first time."""
    result = run(
        """
        import gc, tracemalloc
        from aot.loader.driver import get_driver
        def once():
            with aot.open(PATH) as bundle:
                done = bundle.preload()
                bundle.kernel("reduce_rows")[(1,)](Array(), Array(), 16, OP="sum")
                return done.loaded
        def state():
            gc.collect()
            driver = get_driver()
            handles = [len(driver._libraries), len(driver._kernels), len(driver._ready)]
            return [len(os.listdir("/proc/self/fd")), handles], tracemalloc.get_traced_memory()[0]
        tracemalloc.start()
        loaded = [once() for _ in range(3)]
        before, memory = state()
        loaded += [once() for _ in range(50)]
        after, grown = state()
        answer([loaded, before == after, before[1], grown - memory])
        """,
        *reductions(),
    )
    loaded, flat, handles, grown = result.value
    assert loaded == [20] + [0] * 52
    assert flat
    assert handles == [20, 20, 20]
    # Less than a kilobyte each time; an entry alone takes more.
    assert grown < 50_000
    assert len(result.named("cuLibraryLoadData")) == 20
    assert len(result.launches) == 53


def test_the_end_of_the_process_is_clean(driver: Path, tmp_path: Path) -> None:
    """Bundles and held kernels that are left open: no traceback, no warning, no crash at exit."""
    path = make_bundle(tmp_path / "b", *reductions())
    for ending in (
        "",
        "sys.exit(0)",
        "os.kill(os.getpid(), 0)",
        "import threading; threading.Thread(target=bundle.preload).start()",
    ):
        result = run_script(
            driver,
            "bundle = aot.open(PATH)\nbundle.preload()\nheld = bundle.kernel('reduce_rows')\nanswer(1)\n"
            + ending,
            path,
            python=("-X", "dev", "-W", "error"),
        )
        assert (result.value, result.stderr) == (1, ""), ending


def test_importing_preload_imports_no_torch() -> None:
    code = "import sys, aot.loader.preload, aot.loader.ops.table; assert 'torch' not in sys.modules"
    done: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
