"""Telling callers what became of their jobs: signing and delivering state changes."""
