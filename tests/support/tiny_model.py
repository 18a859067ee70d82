"""A model of the kind of all-MiniLM-L6-v2, two layers deep and eight wide, with weights that anybody computes again: a
sequence of sines. It means nothing, and it is read and computed as the real one."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

WIDTH, HEADS, LAYERS, INNER, PLACES = 8, 2, 2, 16, 16
PIECES = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "search", "files", "in", "the", "work", "##space", "delete", "a", "file",
    "create", "issue", "##s", ",", ".", "搜", "索",
]  # fmt: skip
CONFIG = {
    "model_type": "bert", "hidden_act": "gelu", "hidden_size": WIDTH, "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS, "intermediate_size": INNER, "max_position_embeddings": PLACES,
    "layer_norm_eps": 1e-12, "type_vocab_size": 2, "vocab_size": len(PIECES),
}  # fmt: skip


def weights() -> dict[str, tuple[Sequence[int], list[float]]]:
    """Each array's shape and its numbers, by its name."""
    shapes: dict[str, Sequence[int]] = {
        "embeddings.word_embeddings.weight": (len(PIECES), WIDTH),
        "embeddings.position_embeddings.weight": (PLACES, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm.weight": (WIDTH,),
        "embeddings.LayerNorm.bias": (WIDTH,),
    }
    for layer in range(LAYERS):
        for name, out, into in (
            ("attention.self.query", WIDTH, WIDTH), ("attention.self.key", WIDTH, WIDTH),
            ("attention.self.value", WIDTH, WIDTH), ("attention.output.dense", WIDTH, WIDTH),
            ("intermediate.dense", INNER, WIDTH), ("output.dense", WIDTH, INNER),
        ):  # fmt: skip
            shapes[f"encoder.layer.{layer}.{name}.weight"] = (out, into)
            shapes[f"encoder.layer.{layer}.{name}.bias"] = (out,)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"encoder.layer.{layer}.{name}.weight"] = (WIDTH,)
            shapes[f"encoder.layer.{layer}.{name}.bias"] = (WIDTH,)
    numbers = _numbers()
    return {name: (shape, [next(numbers) for _ in range(math.prod(shape))]) for name, shape in shapes.items()}


def _numbers() -> Iterator[float]:
    return (math.sin(number * number % 1009) for number in count(1))


def write_model(folder: Path, **config: Any) -> Path:
    """Write the three files. `config`: what is otherwise in its `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    header, body = dict[str, Any](), bytearray()
    for name, (shape, numbers) in weights().items():
        data = struct.pack(f"<{len(numbers)}f", *numbers)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + body)
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    tokenizer = {"normalizer": {"lowercase": True}, "model": {"type": "WordPiece", "vocab": vocabulary}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}), encoding="utf-8")
    return folder
