"""Kernels under Triton's interpreter, on the CPU.

``TRITON_INTERPRET`` is read when a kernel is decorated, Triton's own helpers included, and then
holds for the whole process. So these tests run in a pytest process of their own, with the
variable set: ``TRITON_INTERPRET=1 pytest tests/interpreter``; elsewhere nothing is collected.
"""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
