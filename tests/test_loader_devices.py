"""Streams, devices, contexts, threads, forks and captures, against the fake driver library."""

from __future__ import annotations

from bundlemaker import Draft, pointer, scalar, variant
from loaderscripts import Runner, ints, simple


def test_streams(run: Runner) -> None:
    """Field case C12: the stream that was asked for, and torch's current stream for torch's tensors."""
    result = run(
        """
        import torch
        kernel = aot.open(PATH).kernel("k")
        kernel.with_stream(11)[(1,)](Array(), 16)
        kernel.with_stream(types.SimpleNamespace(cuda_stream=12))[(1,)](Array(), 16)
        kernel.with_stream(types.SimpleNamespace(__cuda_stream__=lambda: (0, 13)))[(1,)](Array(), 16)

        class OnGpu(torch.Tensor):
            # This torch has no CUDA; where the tensor lies is all that the loader asks of it.
            device = property(lambda self: torch.device("cuda", 1))
            def data_ptr(self):
                return (2 << 40) + 4096

        torch._C._cuda_getCurrentRawStream = lambda index: 20 + index
        kernel[(1,)](torch.empty(4).as_subclass(OnGpu), 16)
        kernel.with_stream(14)[(1,)](torch.empty(4).as_subclass(OnGpu), 16)
        kernel[(1,)](Array(), 16)
        answer(error(kernel.with_stream, "main"))
        """,
        simple(),
        devices="9.0,9.0",
    )
    wanted = [(11, 0), (12, 0), (13, 0), (21, 1), (14, 1), (0, 0)]
    assert [(x["stream"], x["device"]) for x in result.launches] == wanted
    assert result.value == [
        "UsageError",
        "found stream 'main', wanted a handle, torch's stream or a CUDA Python stream",
    ]


def test_devices_and_contexts(run: Runner) -> None:
    """The tensor's device decides; the context that was current is current afterwards."""
    result = run(
        """
        from aot.loader.driver import get_driver
        kernel = aot.open(PATH).kernel("k")
        for device in (1, 0, 1):
            kernel[(1,)](Array(device=device), 16)
        driver = get_driver()
        before = int(driver._cu.current_context()[1])
        with driver.current(driver.device(1)):
            kernel[(1,)](Array(device=0), 16)
            kernel[(1,)](Array(device=1), 16)
            inside = int(driver._cu.current_context()[1]) == driver.device(1).context
        answer([before, inside, int(driver._cu.current_context()[1])])
        """,
        simple(),
        devices="9.0,9.0",
    )
    assert result.value == [0, True, 0]
    assert [x["device"] for x in result.launches] == [1, 0, 1, 0, 1]
    assert len(result.named("cuLibraryLoadData")) == 1


def test_device_of_an_array_that_does_not_say(run: Runner) -> None:
    """__cuda_array_interface__ names no device: the driver is asked whose memory it is."""
    result = run(
        """
        class Foreign:
            def __init__(self, typestr, address):
                self.__cuda_array_interface__ = {"typestr": typestr, "data": (address, False), "shape": (1,)}
        kernel = aot.open(PATH).kernel("k")
        kernel[(1,)](Foreign("<f4", (2 << 40) + 16), 16)
        answer([error(kernel[(1,)], Foreign(t, 1 << 40), 16)[1] for t in ("<f2", ">f4", "|V2")])
        """,
        simple(),
        devices="9.0,9.0",
    )
    assert [x["device"] for x in result.launches] == [1]
    assert "x is float32, the call has float16" in result.value[0]
    assert result.value[1:] == [
        f"kernel 'k': x: found elements of type '{t}', wanted little-endian bool, int, uint, float or complex"
        for t in (">f4", "|V2")
    ]


def test_many_threads_at_the_first_launch(run: Runner) -> None:
    """Field case C08: threads that never touched CUDA; one load each, and every launch right."""
    result = run(
        """
        import threading
        bundle = aot.open(PATH)
        kernel = bundle.kernel("k")
        start = threading.Barrier(16)
        def work(i):
            start.wait()
            for j in range(10):
                kernel[(1,)](Array(), 100 * i + j + 3)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        answer(bundle.stats())
        """,
        Draft(variants=[variant(pointer("x"), scalar("n"))]),
    )
    assert result.value == {"hits": 160, "misses": 0, "launches": 160, "loads": 1}
    assert len(result.named("cuLibraryLoadData")) == 1
    assert len(result.named("cuInit")) == 1
    values = sorted(ints(x, *"QiQQ")[1] for x in result.launches)
    assert values == sorted(100 * i + j + 3 for i in range(16) for j in range(10))


def test_fork(run: Runner) -> None:
    """Field case C09: fork before the first launch works; after it the child gets a clear error."""
    result = run(
        """
        def child(function):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(write, json.dumps(function()).encode())
                os._exit(0)
            os.waitpid(pid, 0)
            return pid, json.loads(os.read(read, 10000))

        kernel = aot.open(PATH).kernel("k")
        call = lambda: error(kernel[(1,)], Array(), 16)
        before = child(call)[1]
        kernel[(1,)](Array(), 16)
        pid, after = child(call)
        parent = call()
        message = after[1].replace(str(pid), "CHILD").replace(str(os.getpid()), "PARENT")
        answer([before, parent, after[0], message])
        """,
        simple(),
    )
    assert result.value == [
        None,
        None,
        "DriverError",
        "this process (CHILD) was forked from process PARENT after that one used CUDA, and CUDA does not "
        "work in such a child; start workers with the spawn or forkserver method, "
        "or fork before the first launch",
    ]


def test_first_load_in_a_capture(run: Runner) -> None:
    """Field case C10: refused before the driver is asked to load; what is loaded launches."""
    result = run(
        """
        kernel = aot.open(PATH).kernel("k")
        captured = kernel.with_stream(9)
        first = error(captured[(1,)], Array(), 16)
        kernel[(1,)](Array(), 16)
        answer([first, error(captured[(1,)], Array(), 16)])
        """,
        simple(),
        capturing="9",
    )
    assert result.value == [
        [
            "LaunchError",
            "kernel 'k' of target sm_90 is not loaded yet, and the stream is being captured; load it before "
            'the capture begins: bundle.preload(kernels=["k"], dtypes=["float32"])',
        ],
        None,
    ]
    assert [x["stream"] for x in result.launches] == [0, 9]
