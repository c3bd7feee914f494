"""A real llama.cpp server with a tiny random model: an OpenAI-dialect target that nobody here wrote.

    with LlamaServer() as llama:
        openai.OpenAI(base_url=llama.url + "/v1", api_key="none")

It answers chat, completions and embeddings for the model `tiny`, streams, follows JSON schemas, calls tools
when its arm is twisted, and stops when its client disconnects.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.fakes.process import ChildProcess

MODEL = "tiny"

# Part of the file name: raise it when tiny_model.py changes what it makes.
_RECIPE = 3

# What makes a random model call a tool: llama.cpp's own fields, beside those of the request.
FORCED_TOOL_CALL = {"tool_choice": "required", "logit_bias": [["<tool_", 50]]}


class LlamaServer(ChildProcess):
    def __init__(self, port: int = 0) -> None:
        super().__init__("tests.fakes.openai_llama", [], port)


def tiny_model() -> Path:
    """The file, made on first use and kept with the temporary files."""
    path = Path(tempfile.gettempdir()) / f"tiny-random-{_RECIPE}.gguf"
    if not path.exists():
        # Slow to import, and needed once.
        from tests.fakes.tiny_model import write_tiny_model

        fresh = path.with_suffix(f".{os.getpid()}")
        write_tiny_model(fresh)
        # Several test processes may do this at once: a rename is all or nothing.
        fresh.replace(path)
    return path


def serve(port: int) -> None:
    # Imported by the server alone: tests that only start it do not need it.
    import xllamacpp  # type: ignore[import-untyped]

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(tiny_model())
    parameters.model_alias = {MODEL}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_ctx = 8192
    parameters.n_parallel = 4
    parameters.n_threads_http = 8
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    parameters.cache_ram_mib = 0
    parameters.warmup = False
    parameters.use_jinja = True
    parameters.embedding = True
    parameters.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    parameters.verbosity = 1
    server = xllamacpp.Server(parameters)
    sys.stdout.write(f"listening on {server.listening_address.rpartition(':')[2]}\n")
    sys.stdout.flush()
    # Nothing is ever written to the pipe: the parent is gone when it ends.
    sys.stdin.read()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--exit-with-parent", action="store_true", help="always the case")
    serve(parser.parse_args().port)
