"""The JSON Schema of spec files, printed from the description that the parser reads through.

``python -m aot.build.schema`` writes it to standard output; ``docs/spec-schema.json`` is
that output.
"""

from __future__ import annotations

import json
import sys

from aot.build.language import SPEC
from aot.build.shapes import Json


def json_schema() -> Json:
    """Return the schema, of JSON Schema's draft 2020-12."""
    defs: dict[str, Json] = {}
    schema = SPEC.json(defs)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A kernel spec of aot-kernels",
        **schema,
        "$defs": dict(sorted(defs.items())),
    }


def main() -> None:
    """Write the schema to standard output."""
    sys.stdout.write(json.dumps(json_schema(), indent=1) + "\n")


if __name__ == "__main__":
    main()
