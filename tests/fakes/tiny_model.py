"""Makes a random language model of half a megabyte that a real llama.cpp runs.

It knows a few dozen words, and bytes for everything else. One embedding channel is the same for every token:
the output matrix uses it to keep raw bytes and control tokens from being said unless a grammar leaves no
other choice. So the text is readable and runs until `max_tokens`, and JSON schemas are still followed.
"""

from pathlib import Path

import gguf
import numpy as np
from gguf.constants import TokenType

_WORDS = """
the a of and to in is on it as with for was that by at from be this not are or an we you they he she
job queue model token lamp river stone cloud green small quick quiet bright winter summer services garden
"""

# A model of this template calls a tool as soon as it says both, and llama.cpp's grammar does the rest. The
# second always follows the first. (One token for the two would be refused: a trigger has to be text.)
_CALL_TOKENS = ["<tool_", "call>\n"]

_TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
Call one as <tool_call>
{"name": <name>, "arguments": <object>}
</tool_call><|im_end|>
{% endif -%}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""

_WIDTH, _HIDDEN, _LAYERS, _HEADS, _CONTEXT = 64, 128, 2, 4, 8192


def _vocabulary() -> tuple[list[str], list[TokenType]]:
    control = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    kinds = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 4]
    raw_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    kinds += [TokenType.BYTE] * len(raw_bytes)
    # The quotation mark is a word, so that strings in JSON come to an end.
    words = [f"▁{word}" for word in _WORDS.split()] + ['"', "▁"]
    kinds += [TokenType.NORMAL] * len(words)
    return [*control, *raw_bytes, *words, *_CALL_TOKENS], [*kinds, *[TokenType.USER_DEFINED] * 2]


def write_tiny_model(path: Path) -> None:
    tokens, kinds = _vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_scores([0.0 if kind != TokenType.NORMAL else -float(i) for i, kind in enumerate(kinds)])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    # With the space that this tokenizer begins with, grammars do not recognise the prompt they continue.
    writer.add_add_space_prefix(False)
    writer.add_chat_template(_TEMPLATE)
    _add_weights(writer, tokens, kinds)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_weights(writer: gguf.GGUFWriter, tokens: list[str], kinds: list[TokenType]) -> None:
    random = np.random.default_rng(7)

    def noise(*shape: int, scale: float) -> np.ndarray:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    ones = np.ones(_WIDTH, np.float32)
    embedding = noise(len(tokens), _WIDTH, scale=0.3)
    embedding[:, 0] = 4.0
    output = noise(len(tokens), _WIDTH, scale=0.3)
    output[:, 0] = [0.0 if kind == TokenType.NORMAL else -3.0 for kind in kinds]
    # The second channel is how the first half of a tool call asks for the second.
    first, second = (tokens.index(token) for token in _CALL_TOKENS)
    embedding[:, 1] = output[:, 1] = 0.0
    embedding[first, 1], output[second, 1] = 8.0, 25.0
    output[tokens.index('"')] = 0.0
    output[tokens.index('"'), 0] = 0.3
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", output)
    for layer in range(_LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", ones)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", noise(_WIDTH, _WIDTH, scale=0.1))
        for name in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", noise(_HIDDEN, _WIDTH, scale=0.1))
        writer.add_tensor(f"blk.{layer}.ffn_down.weight", noise(_WIDTH, _HIDDEN, scale=0.1))
