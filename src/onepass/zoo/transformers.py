"""Transformers of the zoo. In: a seed and sizes. Out: a builder that holds the whole graph."""

from __future__ import annotations

import math

import numpy as np

from onepass.core.dtypes import F32, I64
from onepass.zoo.builder import ModelBuilder

VOCABULARY = 30522
"""Entries of the word-piece vocabulary of bert-base-uncased (its config.json)."""


def bert_base(seed: int = 0, layers: int = 12, hidden: int = 768, heads: int = 12,
              sequence: int = 128) -> ModelBuilder:
    """BERT-base (Devlin et al. 2018), sequence of 128; GELU as its chain of primitives, additive mask."""
    b = ModelBuilder("bert_base", opset=17, seed=seed)
    words, segments, mask = (
        b.input(name, I64, ("N", sequence)) for name in ("input_ids", "token_type_ids", "attention_mask")
    )
    bias = _additive_mask(b, mask)
    x = _embeddings(b, words, segments, hidden, sequence)
    for layer in range(layers):
        path = f"encoder.layer.{layer}"
        y = _bert_attention(b, f"{path}.attention", x, bias, hidden, heads)
        x = b.node(f"{path}.attention.output", "Add", [y, x])
        x = b.layer_norm(f"{path}.attention.output.LayerNorm", x, hidden, 1e-12)
        y = b.linear(f"{path}.intermediate.dense", x, hidden, 4 * hidden)
        y = b.gelu_chain(f"{path}.intermediate.act", y)
        y = b.linear(f"{path}.output.dense", y, 4 * hidden, hidden)
        x = b.layer_norm(f"{path}.output.LayerNorm", b.node(f"{path}.output", "Add", [y, x]), hidden, 1e-12)
    first = b.node("pooler", "Gather", [x, b.ints("pooler.index", 0)], axis=1)
    pooled = b.node("pooler.activation", "Tanh", [b.gemm("pooler.dense", first, hidden, hidden)])
    b.output(x, "last_hidden_state", F32, ("N", sequence, hidden))
    b.output(pooled, "pooler_output", F32, ("N", hidden))
    return b


def _additive_mask(b: ModelBuilder, mask: str) -> str:
    """0 where a token may be attended to, the lowest float elsewhere, as [N, 1, 1, sequence]."""
    spread = b.node("mask", "Unsqueeze", [mask, b.ints("mask.axes", [1, 2])])
    kept = b.node("mask", "Cast", [spread], to=1)
    hidden = b.node("mask", "Sub", [b.floats("one", 1.0), kept])
    return b.node("mask", "Mul", [hidden, b.floats("mask.lowest", float(np.finfo(np.float32).min))])


def _embeddings(b: ModelBuilder, words: str, segments: str, hidden: int, sequence: int) -> str:
    path = "embeddings"
    tables = {
        "word_embeddings": (words, VOCABULARY),
        "token_type_embeddings": (segments, 2),
        "position_embeddings": (b.constant(f"{path}.position_ids", np.arange(sequence)[np.newaxis]), 512),
    }
    parts = [
        b.node(f"{path}.{name}", "Gather", [b.normal(f"{path}.{name}.weight", (size, hidden), 0.05), ids])
        for name, (ids, size) in tables.items()
    ]
    total = b.node(f"{path}.positions", "Add", [b.node(path, "Add", parts[:2]), parts[2]])
    return b.layer_norm(f"{path}.LayerNorm", total, hidden, 1e-12)


def _bert_attention(b: ModelBuilder, path: str, x: str, bias: str, hidden: int, heads: int) -> str:
    size = hidden // heads
    split = b.ints("heads.shape", [0, 0, heads, size])

    def project(name: str, perm: list[int]) -> str:
        # Twice the variance of a fresh layer: trained attention is peaked, not uniform.
        y = b.linear(f"{path}.self.{name}", x, hidden, hidden, gain=2.0 if name != "value" else 1.0)
        y = b.node(f"{path}.self.{name}", "Reshape", [y, split])
        return b.node(f"{path}.self.{name}", "Transpose", [y], perm=perm)

    query, value = project("query", [0, 2, 1, 3]), project("value", [0, 2, 1, 3])
    scores = b.node(f"{path}.self.scores", "MatMul", [query, project("key", [0, 2, 3, 1])])
    scores = b.node(f"{path}.self", "Div", [scores, b.floats("heads.scale", math.sqrt(size))])
    weights = b.node(f"{path}.self", "Softmax", [b.node(f"{path}.self", "Add", [scores, bias])], axis=-1)
    y = b.node(f"{path}.self", "MatMul", [weights, value])
    y = b.node(f"{path}.self", "Transpose", [y], perm=[0, 2, 1, 3])
    y = b.node(f"{path}.self", "Reshape", [y, b.ints("hidden.shape", [0, 0, hidden])])
    return b.linear(f"{path}.output.dense", y, hidden, hidden)


def vit_b16(seed: int = 0, layers: int = 12, hidden: int = 768, heads: int = 12) -> ModelBuilder:
    """ViT-B/16 (Dosovitskiy et al. 2020) at 224x224; norm first, one projection to query, key and value."""
    b = ModelBuilder("vit_b16", opset=20, seed=seed)
    image = b.input("input", F32, ("N", 3, 224, 224))
    x = b.conv("patch_embed.proj", image, 3, hidden, 16, stride=16, pad=0, bias=True, gain=1.0)
    x = b.node("patch_embed", "Reshape", [x, b.ints("patch_embed.shape", [0, hidden, -1])])
    x = b.node("patch_embed", "Transpose", [x], perm=[0, 2, 1])
    x = b.node("", "Concat", [_class_token(b, image, hidden), x], axis=1)
    x = b.node("", "Add", [x, b.normal("pos_embed", (1, 197, hidden), 0.2)])
    for layer in range(layers):
        path = f"blocks.{layer}"
        y = _vit_attention(b, f"{path}.attn", b.layer_norm(f"{path}.norm1", x, hidden, 1e-6), hidden, heads)
        x = b.node(path, "Add", [x, y])
        y = b.linear(f"{path}.mlp.fc1", b.layer_norm(f"{path}.norm2", x, hidden, 1e-6), hidden, 4 * hidden)
        y = b.node(f"{path}.mlp.act", "Gelu", [y], approximate="none")
        x = b.node(f"{path}.mlp", "Add", [x, b.linear(f"{path}.mlp.fc2", y, 4 * hidden, hidden)])
    x = b.node("pool", "Gather", [b.layer_norm("norm", x, hidden, 1e-6), b.ints("pool.index", 0)], axis=1)
    b.output(b.gemm("head", x, hidden, 1000), "output", F32, ("N", 1000))
    return b


def _class_token(b: ModelBuilder, image: str, hidden: int) -> str:
    """The learned token, once per image: the batch is read from the shape of the input."""
    batch = b.node("batch", "Gather", [b.node("batch", "Shape", [image]), b.ints("zero", 0)], axis=0)
    batch = b.node("batch", "Unsqueeze", [batch, b.ints("axis0", [0])])
    shape = b.node("cls_token", "Concat", [batch, b.ints("cls_token.shape", [1, hidden])], axis=0)
    return b.node("cls_token", "Expand", [b.normal("cls_token.value", (1, 1, hidden), 0.2), shape])


def _vit_attention(b: ModelBuilder, path: str, x: str, hidden: int, heads: int) -> str:
    size = hidden // heads
    x = b.linear(f"{path}.qkv", x, hidden, 3 * hidden, gain=1.5)
    x = b.node(f"{path}.qkv", "Reshape", [x, b.ints("qkv.shape", [0, 0, 3, heads, size])])
    x = b.node(f"{path}.qkv", "Transpose", [x], perm=[2, 0, 3, 1, 4])
    query, key, value = (
        b.node(f"{path}.{name}", "Gather", [x, b.ints(f"{name}.index", i)], axis=0)
        for i, name in enumerate(("q", "k", "v"))
    )
    query = b.node(f"{path}.scale", "Mul", [query, b.floats("qkv.scale", size**-0.5)])
    key = b.node(f"{path}.k", "Transpose", [key], perm=[0, 1, 3, 2])
    weights = b.node(path, "Softmax", [b.node(f"{path}.scores", "MatMul", [query, key])], axis=-1)
    x = b.node(path, "Transpose", [b.node(path, "MatMul", [weights, value])], perm=[0, 2, 1, 3])
    x = b.node(path, "Reshape", [x, b.ints("hidden.shape", [0, 0, hidden])])
    return b.linear(f"{path}.proj", x, hidden, hidden)
