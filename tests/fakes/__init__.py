"""Targets to test against: a faithful imitation of Ollama, and a real llama.cpp with a tiny random model.

Both run as processes of their own, on real sockets.
"""

from tests.fakes.process import FakeOllama

__all__ = ["FakeOllama"]
