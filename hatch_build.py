"""Builds the native launcher into the wheel where a C compiler is; without one the wheel is pure Python.

``AOT_BUILD_NATIVE=0`` leaves it out, ``AOT_BUILD_NATIVE=1`` fails the build where it cannot be made.
"""

from __future__ import annotations

import os
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeLauncher(BuildHookInterface[Any]):
    """hatchling's hook: compiles before the files of a wheel are gathered."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("AOT_BUILD_NATIVE", "")
        if self.target_name != "wheel" or wanted == "0":
            return
        script = runpy.run_path(str(Path(self.root, "aot", "loader", "csrc", "compile.py")))
        output: Path = script["OUTPUT"]
        fault = script["compile_launcher"]()
        if fault is not None:
            if wanted == "1":
                raise RuntimeError(f"the native launcher was not built: {fault}")
            self.app.display_warning(
                f"the native launcher was not built, calls will go through Python: {fault}"
            )
            return
        if version == "editable":
            return
        build_data["pure_python"] = False
        # One file serves every CPython from 3.10 on; the platform's is the machine that builds.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp310-abi3-{platform}"
        build_data["force_include"][str(output)] = f"aot/loader/{output.name}"
