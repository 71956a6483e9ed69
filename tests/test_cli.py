"""The command line's contract: exit codes, whole messages, ``--json``, an example in each help."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from bundlemaker import Draft, constexpr, make_bundle, pack_file, pointer, scalar, variant
from commandline import aot
from kernelfolder import SCALE_PY, SCALE_YAML, scale_folder, write

from aot.target import KNOWN_TARGETS

COMMANDS = ("plan", "build", "ls", "explain", "verify")


def refused(*args: object, code: int = 2) -> str:
    """Run a command that must fail with ``code`` and print nothing else; return its one line of error."""
    done = aot(*args)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("aot: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("aot: ").rstrip("\n")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernel k(x, n, eps, BLOCK): float32 and int8 × aligned and not."""
    variants = [
        variant(
            pointer("x", dtype, align),
            scalar("n", "i32"),
            scalar("eps", "fp32"),
            constexpr("BLOCK", 64),
            axes={"dtype": dtype},
        )
        for dtype in ("float32", "int8")
        for align in (16, 1)
    ]
    return make_bundle(tmp_path_factory.mktemp("cli") / "b", Draft(variants=variants))


# Help ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    done = aot(command, "--help")
    assert done.returncode == 0
    assert f"Example: aot {command} " in " ".join(done.stdout.split())


def test_version_and_no_command() -> None:
    assert aot("--version").stdout.startswith("aot, version ")
    assert aot("--help").returncode == 0
    for args in ((), ("nosuch",), ("plan",), ("build", "k"), ("build", "k", "-o", "b", "-j", "0")):
        done = aot(*args)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Usage: aot" in done.stderr


# Bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuch", "found nothing, wanted a .yaml file or a folder of them"),
        ("nosuch.yaml", "found no such file or directory, wanted a spec file"),
        ("notes.txt", "found a file, wanted a .yaml file or a folder of them"),
        ("empty", "found a folder with no .yaml file, wanted at least one"),
        ("pipe.yaml", "found no regular file, wanted a spec file"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "build"])
def test_a_spec_that_is_none(tmp_path: Path, command: str, name: str, message: str) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    out = ["-o", tmp_path / "b"] if command == "build" else []
    assert refused(command, tmp_path / name, *out) == f"{tmp_path / name}: {message}"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--target", "sm_9O"], f"found target 'sm_9O', wanted one of {', '.join(KNOWN_TARGETS)}; "
         "did you mean 'sm_90'?"),
        (["--target", ""], f"found target '', wanted one of {', '.join(KNOWN_TARGETS)}"),
        (["--filter", "x"], "--filter: found 'x', wanted KEY=VALUE[,VALUE], such as op=sum,prod"),
        (["--filter", "dtype="], "--filter: found 'dtype=', wanted KEY=VALUE[,VALUE], such as op=sum,prod"),
        (["--filter", "dtyp=float32"], "found filter 'dtyp', wanted one of dtype, kernel, target; "
         "did you mean 'dtype'?"),
        (["--filter", "dtype=float33"], "found dtype='float33', wanted one of float32, float64; "
         "did you mean 'float32'?"),
    ],
)  # fmt: skip
def test_wrong_targets_and_filters(tmp_path: Path, args: list[str], message: str) -> None:
    assert refused("plan", scale_folder(tmp_path / "k"), *args) == message


def test_every_fault_of_a_spec_is_its_own_line(tmp_path: Path) -> None:
    folder = scale_folder(tmp_path / "k")
    write(folder, scale_yaml=SCALE_YAML.replace("int32", "int33").replace("sm_90a", "sm_90x"))
    done = aot("plan", folder)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert [line.split(": ")[1].removeprefix(f"{folder}/") for line in lines] == [
        "scale.yaml:10:12",
        "scale.yaml:14:11",
    ]


def test_an_output_folder_that_cannot_be(tmp_path: Path) -> None:
    """Said before a spec is read or a process starts: the spec here does not even exist."""
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").write_text("mine")
    for name, found in (("dangling", "a link to nothing"), ("file", "a file")):
        assert refused("build", "nosuch.yaml", "-o", tmp_path / name) == (
            f"{tmp_path / name}: found {found}, wanted a folder for the bundle; choose another -o"
        )
    assert refused("build", "nosuch.yaml", "-o", "") == (
        "--output: found an empty path, wanted a folder for the bundle"
    )


@pytest.mark.parametrize("seconds", ["0", "nan", "inf", "1e400", "-1", "x"])
def test_a_timeout_that_is_none(tmp_path: Path, seconds: str) -> None:
    """No number of seconds makes a build wait for ever, or the system's own wait overflow."""
    done = aot("build", scale_folder(tmp_path / "k"), "-o", tmp_path / "b", "--timeout", seconds)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Invalid value for '--timeout'" in done.stderr
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("command", [["ls"], ["verify"], ["explain", "k", "--target", "sm_90"]])
def test_a_bundle_that_is_none(tmp_path: Path, command: list[str]) -> None:
    """A wrong path is bad input: 2. A folder that should hold a bundle and does not fails the check: 1."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    name, *rest = command
    wanted = "wanted a bundle (a directory with manifest.json)"
    assert refused(name, tmp_path / "nosuch", *rest) == f"{tmp_path / 'nosuch'}: found nothing, {wanted}"
    assert refused(name, tmp_path / "file", *rest) == f"{tmp_path / 'file'}: found a file, {wanted}"
    assert refused(name, "", *rest) == f"found an empty path, {wanted}"
    assert refused(name, tmp_path / "empty", *rest, code=1) == (
        f"{tmp_path / 'empty'}/manifest.json: found no such file or directory, "
        "wanted a regular file of a bundle"
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("n", "found 'n', wanted KEY=VALUE, such as n_cols=1000"),
        ("n=", "found 'n=', wanted KEY=VALUE, such as n_cols=1000"),
        ("n=x", "n: found 'x', wanted a number"),
        ("n=" + "[" * 100_000, "n: found '" + "[" * 57 + "...', wanted a number"),
        ("n=" + "1" * 5000, "n: found '" + "1" * 57 + "...', wanted a number"),
        ("BLOK=1", "found 'BLOK', wanted one of x, n, eps, BLOCK, dtype, num_warps, num_stages, num_ctas, "
         "maxnreg; did you mean 'BLOCK'?"),
        ("x=float32:8", "x: found alignment '8', wanted 1 or 16, such as x=float32:1"),
        ("dtype=float33", "dtype: found 'float33', wanted one of float32, int8; did you mean 'float32'?"),
        ("num_warps=NaN", "num_warps: found 'NaN', wanted an integer, or null for none"),
        ("num_warps=Infinity", "num_warps: found 'Infinity', wanted an integer, or null for none"),
        ("num_warps=4.7", "num_warps: found '4.7', wanted an integer, or null for none"),
        ("num_warps=true", "num_warps: found 'true', wanted an integer, or null for none"),
    ],
)  # fmt: skip
def test_explain_refuses(bundle: Path, call: str, message: str) -> None:
    assert refused("explain", bundle, "k", "--target", "9.0", call) == message


def test_explain_refuses_a_second_value_and_an_unknown_kernel(bundle: Path) -> None:
    command = ("explain", bundle, "k", "--target", "9.0")
    assert refused(*command, "n=1", "n=2") == "n: found '2' after '1', wanted one value"
    assert (
        refused("explain", bundle, "q", "--target", "9.0")
        == f"{bundle}: found no kernel 'q', wanted one of k"
    )


@pytest.mark.parametrize("value", ["1e3", "NaN", "1e999", "99999999999"])
def test_explain_says_why_a_value_fits_no_variant(bundle: Path, value: str) -> None:
    done = aot("explain", bundle, "k", "--target", "9.0", f"n={value}", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    assert found["chosen"] is None
    assert [decision["reason"][:4] for decision in found["decisions"]] == ["n = "] * 4


# What --json prints ----------------------------------------------------------------------


def keys(value: Any) -> Any:
    """The shape of a JSON value: the names of objects, the first element of lists."""
    if isinstance(value, dict):
        return {name: keys(item) for name, item in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else type(value).__name__


def test_plan_json(tmp_path: Path) -> None:
    folder = scale_folder(tmp_path / "k")
    text = SCALE_YAML.replace("[float32, float64]", "[float32, complex64]").replace(
        "float: $dtype", "float: float32"
    )
    write(folder, scale_yaml=text.replace("align: [16, 1]", "align: 16"))
    done = aot("plan", folder, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert keys(found) == {
        "variants": "int",
        "jobs": "int",
        "estimate": {"core_seconds": "float", "bytes": "int"},
        "targets": {"sm_90a": "int"},
        "counts": [{"op": "str", "dtype": "str", "variants": "int"}],
        "refused": "list",
        "holes": [{"kernel": "str", "target": "str", "group": "str", "what": "str"}],
    }
    assert (found["variants"], found["counts"][0]) == (2, {"op": "scale", "dtype": "float32", "variants": 1})
    assert aot("plan", folder, "--strict").returncode == 1


def test_build_ls_explain_verify_json(tmp_path: Path) -> None:
    folder, out = scale_folder(tmp_path / "k"), tmp_path / "b"
    done = aot("build", folder, "-o", out, "--filter", "dtype=float32", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert keys(found) == {
        "bundle": "str", "variants": "int", "jobs": "int", "cubins": "int", "bytes": "int",
        "seconds": "float", "failures": "list",
    }  # fmt: skip
    assert (found["bundle"], found["variants"], found["jobs"], found["cubins"]) == (str(out), 2, 2, 2)
    assert keys(json.loads(aot("ls", out, "--json").stdout)) == [
        {
            "kernel": "str", "axes": {"dtype": "str"}, "target": "str", "claims": {"x_ptr": "str"},
            "bytes": "int", "raw_bytes": "int", "registers": "int", "local": "int", "shared": "int",
            "num_warps": "int", "sha256": "str",
        }
    ]  # fmt: skip
    done = aot("explain", out, "scale", "--target", "9.0", "x_ptr=float32:1", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert keys(found) == {
        "chosen": {
            "kernel": "str", "target": "str", "axes": {"dtype": "str"}, "claims": {},
            "constexprs": {"BLOCK": "int"}, "num_warps": "int", "sha256": "str",
        },
        "decisions": [
            {"target": "str", "axes": {"dtype": "str"}, "claims": {"x_ptr": "str"}, "reason": "str"}
        ],
    }  # fmt: skip
    assert [d["reason"] for d in found["decisions"]] == ["x_ptr is not aligned to 16 bytes", None]
    done = aot("verify", out, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (
        0, {"bundle": str(out), "variants": 2, "cubins": 2, "faults": []}
    )  # fmt: skip


def test_verify_of_a_damaged_bundle_is_json_too(tmp_path: Path) -> None:
    """A bundle that cannot even be opened is the commonest damage, and its fault is in the JSON."""
    path = make_bundle(tmp_path / "b", Draft(variants=[variant(pointer("x"))]))
    pack = pack_file(path)
    size = pack.stat().st_size
    os.truncate(pack, size - 1)
    fault = f"{pack}: found {size - 1} bytes, wanted {size}; the file was cut or changed"
    done = aot("verify", path, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout) == {
        "bundle": str(path),
        "variants": None,
        "cubins": None,
        "faults": [fault],
    }
    assert refused("verify", path, code=1) == fault


def test_the_matrix_counts_what_was_built(tmp_path: Path) -> None:
    """One claim of a dtype fails and the other does not: both the table and the JSON say two of four."""
    source = SCALE_PY.replace("    i = tl.program_id", "    tl.static_assert(n == 1)\n    i = tl.program_id")
    folder = write(
        tmp_path / "k",
        scale_py=source,
        scale_yaml=SCALE_YAML.replace("align: [16, 1]", "align: 1").replace(
            "{int: int32}", "{int: int32, specialize: [1, any]}"
        ),
    )
    done = aot("build", folder, "-o", tmp_path / "b", "--keep-going")
    assert done.returncode == 1
    assert [line.split() for line in done.stdout.splitlines()[:4]] == [
        ["dtype", "scale", "all"], ["float32", "1", "1"], ["float64", "1", "1"], ["all", "2", "2"],
    ]  # fmt: skip
    found = json.loads(aot("build", folder, "-o", tmp_path / "b", "--keep-going", "--json").stdout)
    assert (found["variants"], len(found["failures"])) == (2, 2)
    assert keys(found["failures"][0]) == {
        "kernel": "str",
        "target": "str",
        "axes": {"dtype": "str"},
        "error": "str",
    }
