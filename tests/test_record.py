"""Recording, as a service does it: against the fake driver, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bundlemaker import Draft, constexpr, make_bundle, pointer, scalar, variant
from fakecuda import run_script
from loaderscripts import Runner, simple

from aot.loader.recordlines import append
from aot.recordfile import read_records

MISSES = """
kernel = aot.open(PATH).kernel("k")[(1,)]
x = Array()
def ask(*args, **options):
    return error(kernel, *args, **options)
"""


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_miss_is_written_as_docs_say(run: Runner, tmp_path: Path) -> None:
    """All that selection looked at, and nothing of the tensor."""
    file = tmp_path / "calls.jsonl"
    draft = Draft(variants=[variant(pointer("x"), scalar("n"), constexpr("BLOCK", 8), scalar("eps", "fp32"))])
    run(
        """
        kernel = aot.open(PATH).kernel("k")[(1,)]
        error(kernel, Array("float16", 8), 5, 8, 0.5, num_warps=8)
        """,
        draft,
        env={"AOT_RECORD": str(file)},
    )
    (found,) = lines(file)
    assert len(found.pop("bundle")) == 64
    assert found == {
        "aot_record": 1,
        "by": "bundle",
        "event": "miss",
        "count": 1,
        "kernel": "k",
        "capability": 90,
        "max_shared": 232448,
        "args": [
            {"kind": "pointer", "name": "x", "dtype": "float16", "align": 1},
            {"kind": "int", "name": "n", "low": 5, "high": 5, "claim": "any"},
            {"kind": "float", "name": "eps", "fits": "float16"},
        ],
        "constexprs": {"BLOCK": 8},
        "options": {"num_warps": 8},
        "source": "kernels.py:k",
        "source_sha256": "0" * 64,
        "specs": {},
    }


def test_nothing_is_written_without_being_asked(run: Runner, tmp_path: Path) -> None:
    """Hits are not recorded unless calls are, and the hooks are None where nothing records."""
    file = tmp_path / "calls.jsonl"
    script = """
    from aot.loader import record
    kernel = aot.open(PATH).kernel("k")[(1,)]
    before = record.misses, record.calls
    with aot.record(PATH + ".jsonl") as one:
        kernel(Array(), 5)
        inside = record.misses == (one,), record.calls
    answer([before, inside, (record.misses, record.calls)])
    """
    assert run(script, simple()).value == [[None, None], [True, None], [None, None]]
    assert (tmp_path / "bundle.jsonl").read_bytes() == b""
    assert not file.exists()


@pytest.mark.parametrize("how", ["api", "environment"])
def test_calls_are_counted_by_kind(run: Runner, tmp_path: Path, how: str) -> None:
    """Extents between the same powers of two are one kind; a multiple of 16 is another; so is an address."""
    file = tmp_path / "calls.jsonl"
    script = """
    kernel = aot.open(PATH).kernel("k")[(1,)]
    for n in (1, 2, 3, 17, 19, 20, 31, 32):
        kernel(Array(), n)
    kernel(Array(offset=4), 17)
    """
    env = {"AOT_RECORD": str(file), "AOT_RECORD_CALLS": "1"} if how == "environment" else {}
    if how == "api":
        script = (
            f"recording = aot.record({str(file)!r}, calls=True)\n"
            + "\n".join(line[4:] for line in script.splitlines())
            + "\nrecording.stop(); recording.stop(); kernel(Array(), 5)"
        )
    run(script, simple(), env=env)
    found = [
        (r.count, r.values["x"].align, r.values["n"].low, r.values["n"].high)  # type: ignore[union-attr]
        for r in read_records(file).records
    ]
    assert found == [
        (1, 16, 1, 1),
        (1, 16, 2, 2),
        (1, 16, 3, 3),
        (4, 16, 17, 31),
        (1, 16, 32, 32),
        (1, 1, 17, 17),
    ]


def test_calls_are_recorded_from_where_recording_starts(run: Runner, tmp_path: Path) -> None:
    """Also of kinds that were served before, by whatever launcher; and no longer when it has stopped."""
    script = """
    bundle = aot.open(PATH)
    kernel, x = bundle.kernel("k")[(1,)], Array()
    for _ in range(5): kernel(x, 5)
    with aot.record(PATH + ".jsonl", calls=True):
        for _ in range(7): kernel(x, 5)
    for _ in range(9): kernel(x, 5)
    answer(bundle.stats()["launches"])
    """
    assert run(script, simple()).value == 21
    assert sum(line["count"] for line in lines(tmp_path / "bundle.jsonl")) == 7


def test_a_held_call_is_recorded_when_it_is_prepared(run: Runner, tmp_path: Path) -> None:
    script = """
    kernel, x = aot.open(PATH).kernel("k"), Array()
    with aot.record(PATH + ".jsonl", calls=True):
        held = kernel.prepare((1,), x, 5)
        for _ in range(7): held(x)
    """
    assert len(run(script, simple()).launches) == 7
    assert [line["count"] for line in lines(tmp_path / "bundle.jsonl")] == [1]


def test_lines_grow_with_the_logarithm_of_a_count(run: Runner, tmp_path: Path) -> None:
    """1000 misses of one kind are some ten lines, and their counts add up."""
    file = tmp_path / "calls.jsonl"
    script = MISSES + "for _ in range(1000): ask(x, 2.5)\n"
    run(script, simple(), env={"AOT_RECORD": str(file)})
    assert [line["count"] for line in lines(file)] == [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 488]


def test_a_killed_process_loses_no_kind_of_call(run: Runner, driver: Path, tmp_path: Path) -> None:
    """Nor the widest of its misses, and at most half of a count."""
    file = tmp_path / "calls.jsonl"
    script = (
        MISSES
        + """
for n in range(2**33 + 1, 2**33 + 200, 2): ask(x, n)
for _ in range(100): ask(Array("int8"), 5)
print(json.dumps(0), flush=True)
if os.fork() == 0:
    os.kill(os.getpid(), 9)
"""
    )
    run(script, simple(), env={"AOT_RECORD": str(file)})
    # The forked child started a record of its own, with nothing in it; the parent wrote the rest.
    assert sum(line["count"] for line in lines(file)) == 200
    file.unlink()
    killed = script.replace("if os.fork() == 0:\n    ", "")
    with pytest.raises(AssertionError, match="exit -9"):
        run_script(driver, killed, tmp_path / "bundle", env={"AOT_RECORD": str(file)})
    wide, narrow = read_records(file).records
    assert wide.values["n"].high == 2**33 + 199  # type: ignore[union-attr]
    assert wide.count == 100
    assert 50 <= narrow.count <= 100


def test_many_processes_and_threads_write_whole_lines(driver: Path, tmp_path: Path) -> None:
    """Four processes of four threads, 4 x 4 x 50 misses of many kinds in one file."""
    file = tmp_path / "calls.jsonl"
    bundle = make_bundle(tmp_path / "b", simple())
    script = (
        MISSES
        + """
import threading
def work(seed):
    for i in range(50):
        ask(x, 2.5, num_warps=2 ** (i % 5), num_stages=(seed + i) % 7)
threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
"""
    )

    def one(number: int) -> None:
        folder = tmp_path / f"driver-{number}"
        folder.mkdir()
        os.link(driver / "libcuda.so.1", folder / "libcuda.so.1")
        run_script(folder, script, bundle, env={"AOT_RECORD": str(file)})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))
    read = read_records(file)
    assert read.notes == ()
    assert sum(r.count for r in read.records) == 4 * 4 * 50


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("missing/calls.jsonl", "no such file or directory"),
        ("folder", "is a directory"),
        ("pipe", "it is no regular file"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_warning(
    run: Runner, tmp_path: Path, path: str, why: str
) -> None:
    """And the service goes on."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    file = tmp_path / path
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    script = MISSES + "kernel(x, 5)\nanswer([ask(x, 2.5)[0], ask(x, 3.5)[0]])\n"
    result = run(script, simple(), env={"AOT_RECORD": str(file)})
    os.close(reader)
    assert result.value == ["KernelMiss", "KernelMiss"]
    assert result.stderr == f"cannot record to {file}: {why}; recording stops\n"


def test_a_full_disk_is_one_warning_and_leaves_no_cut_line(run: Runner, tmp_path: Path) -> None:
    """The file may grow no further: the line that did not fit is taken back."""
    file = tmp_path / "calls.jsonl"
    script = (
        MISSES
        + """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ask(x, 2.5)
size = os.path.getsize(os.environ["AOT_RECORD"])
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limit[1]))
found = [ask(Array("int8"), 5)[0], ask(Array("int16"), 5)[0]]
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
answer(found)
"""
    )
    result = run(script, simple(), env={"AOT_RECORD": str(file)})
    assert result.value == ["KernelMiss", "KernelMiss"]
    assert result.stderr == f"cannot record to {file}: file too large; recording stops\n"
    assert len(lines(file)) == 1


@pytest.mark.parametrize("cut", ['{"aot_record":1,"by":"bun', '{"aot', "{"])
def test_a_line_that_a_killed_writer_left_is_removed(run: Runner, tmp_path: Path, cut: str) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_text('{"first": 1}\n' + cut)
    run(MISSES + "ask(x, 2.5)\n", simple(), env={"AOT_RECORD": str(file)})
    first, ours = lines(file)
    assert (first, ours["count"]) == ({"first": 1}, 1)


@pytest.mark.parametrize("foreign", ["some notes", "{'a': 1}", "x" * 200_000])
def test_a_file_of_something_else_keeps_what_it_has(run: Runner, tmp_path: Path, foreign: str) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_text(foreign)
    run(MISSES + "ask(x, 2.5)\n", simple(), env={"AOT_RECORD": str(file)})
    first, ours = file.read_text().splitlines()
    assert (first, json.loads(ours)["count"]) == (foreign, 1)


def test_a_file_that_stays_locked_does_not_hold_the_service(run: Runner, tmp_path: Path) -> None:
    """Lines wait, and are written when the lock is free; what is left at the end is said."""
    file = tmp_path / "calls.jsonl"
    file.touch()
    script = (
        MISSES
        + """
import fcntl, time
lock = open(os.environ["AOT_RECORD"])
fcntl.flock(lock, fcntl.LOCK_EX)
start = time.monotonic()
for n in range(100): ask(x, float(n), num_stages=n)
spent = time.monotonic() - start
size = os.path.getsize(os.environ["AOT_RECORD"])
fcntl.flock(lock, fcntl.LOCK_UN)
ask(Array("int8"), 5)
lines = open(os.environ["AOT_RECORD"]).read().count("\\n")
fcntl.flock(lock, fcntl.LOCK_EX)
ask(Array("int16"), 5)
answer([spent < 2, size, lines])
"""
    )
    result = run(script, simple(), env={"AOT_RECORD": str(file)})
    assert result.value == [True, 0, 101]
    assert result.stderr == (
        f"cannot record to {file}: another process keeps it locked; lines not written: 1\n"
    )


def test_two_recordings_at_once(run: Runner, tmp_path: Path) -> None:
    """The environment's goes on while a program makes one of its own."""
    script = MISSES + ('with aot.record(PATH + ".own"):\n    ask(x, 2.5)\nask(x, 3.5)\n')
    run(script, simple(), env={"AOT_RECORD": str(tmp_path / "all.jsonl")})
    assert sum(line["count"] for line in lines(tmp_path / "all.jsonl")) == 2
    assert sum(line["count"] for line in lines(tmp_path / "bundle.own")) == 1


def test_a_call_that_a_later_bundle_serves_is_no_miss(driver: Path, tmp_path: Path) -> None:
    """And one that every default bundle misses is one miss, the first bundle's."""
    first = make_bundle(tmp_path / "first", Draft(variants=[variant(pointer("x", "float16"), scalar("n"))]))
    second = make_bundle(tmp_path / "second", Draft(variants=[variant(pointer("x", "float32"), scalar("n"))]))
    file = tmp_path / "calls.jsonl"
    script = """
    from aot.loader import discovery
    def ask(dtype):
        return error(discovery.serve, "k", lambda kernel: kernel[(1,)](Array(dtype), 5))
    kernel = aot.open(PATH).kernel("k")[(1,)]
    answer([ask("float32"), (ask("int8") or [0])[0], error(kernel, Array("int16"), 5)[0]])
    """
    env = {"AOT_RECORD": str(file), "AOT_BUNDLE_PATH": f"{first}:{second}"}
    assert run_script(driver, script, second, env=env).value == [None, "KernelMiss", "KernelMiss"]
    digests = [json.loads((path / "manifest.json").read_text())["digest"] for path in (first, second)]
    assert [(line["args"][0]["dtype"], line["bundle"]) for line in lines(file)] == [
        ("int8", digests[0]),
        ("int16", digests[1]),
    ]


def test_killed_writers_leave_a_file_that_reads_well(tmp_path: Path) -> None:
    """SIGKILL in the middle of writing, five times: what a write of the next one finds is whole lines."""
    file = tmp_path / "calls.jsonl"
    code = (
        "import sys\nfrom aot.loader.recordlines import append\n"
        "line = b'{\"aot_record\":\"' + b'x' * 50_000 + b'\"}\\n'\n"
        "while True: append(sys.argv[1], line)\n"
    )
    for _ in range(5):
        size = file.stat().st_size if file.exists() else 0
        writer = subprocess.Popen([sys.executable, "-c", code, str(file)])
        while not file.exists() or file.stat().st_size < size + 1_000_000:
            assert writer.poll() is None
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert append(str(file), b'{"aot_record":"last"}\n')
    *most, last = file.read_bytes().splitlines(keepends=True)
    assert last == b'{"aot_record":"last"}\n'
    assert {len(line) for line in most} == {50_018}
