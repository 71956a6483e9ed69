"""The reductions with torch's face. ``aot.ops`` is the door; nothing is imported here."""
