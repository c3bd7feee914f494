"""The HTTP surface: one file per resource. Reads requests, calls the engine and the store, writes answers."""
