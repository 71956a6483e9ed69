"""How long a preload of 500 kernels takes, by threads, and whether the driver loads in parallel.

``python -m benchmarks.preload BUNDLE`` (a bundle of ``benchmarks.bigbundle``) runs each measurement in a
process of its own, in which CUDA is up and nothing is loaded, and prints one JSON line for each. ``preload``
is ``Bundle.preload``; ``driver`` gives cubins that were read before straight to the driver from many
threads, past the lock that the loader holds: where more threads take as long as one, the driver has a lock
of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time

KERNELS = ("preload_rows", "preload_cols")
THREADS = (1, 2, 4, 8)


def preload(path: str, threads: int) -> dict[str, object]:
    """One preload, with a device's context already there."""
    import aot
    from aot.loader.driver import get_driver

    driver = get_driver()
    driver.device(0)
    with aot.open(path) as bundle:
        started = time.perf_counter()
        done = bundle.preload(kernels=KERNELS, threads=threads)
        wall = (time.perf_counter() - started) * 1000
        again = bundle.preload(kernels=KERNELS, threads=threads)
    return {
        "kernels": done.loaded,
        "bytes": done.bytes,
        "ms": round(wall, 2),
        "again_ms": round(again.milliseconds, 2),
    }


def driver_alone(path: str, threads: int) -> dict[str, object]:
    """The same cubins, read before, to the driver from several threads at once."""
    import aot
    from aot.loader.driver import get_driver

    driver = get_driver()
    device = driver.device(0)
    cubins: dict[str, tuple[bytes, bytes]] = {}
    with aot.open(path) as bundle:
        for name in KERNELS:
            for table in bundle.reader.kernels[name].tables:
                for entry in bundle.reader.table(table):
                    ref = entry.binary.cubin
                    if ref.sha256 not in cubins:
                        data = bundle.reader.cubin(table.target, ref)
                        cubins[ref.sha256] = (data, entry.binary.symbol.encode())
    work = list(cubins.values())
    start = threading.Barrier(threads + 1)

    def load(part: list[tuple[bytes, bytes]]) -> None:
        with driver.current(device):
            start.wait()
            for data, symbol in part:
                library = driver.value(driver._cu.load_library(data), "cuLibraryLoadData")
                kernel = driver.value(driver._cu.library_kernel(library, symbol), "cuLibraryGetKernel")
                driver.value(driver._cu.kernel_function(kernel), "cuKernelGetFunction")

    workers = [threading.Thread(target=load, args=(work[i::threads],)) for i in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    started = time.perf_counter()
    for worker in workers:
        worker.join()
    return {"kernels": len(work), "ms": round((time.perf_counter() - started) * 1000, 2)}


WHAT = {"preload": preload, "driver": driver_alone}


def main() -> None:
    """Measure in processes of their own, or, with ``--one``, here."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.preload",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "THREADS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        what, threads = options.one
        print(json.dumps({"what": what, "threads": int(threads), **WHAT[what](options.bundle, int(threads))}))
        return
    for what in WHAT:
        for threads in THREADS:
            for _ in range(options.repeats):
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.preload",
                    options.bundle,
                    "--one",
                    what,
                    str(threads),
                ]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
