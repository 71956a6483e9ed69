"""``python -m aot.cli`` is ``aot``."""

from aot.cli import main

main()
