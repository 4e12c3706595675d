"""GPT-2 (Radford et al., 2019), keys and shapes equal to those of Hugging Face's GPT2LMHeadModel.

Without dropout: weights, arithmetic and gradients are GPT-2's, and a seed gives the same loss everywhere.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.case import Case
from bench.options import option
from bench.workload import Sample, Workload, token_loss


class Conv1D(nn.Module):
    """A linear layer whose weight lies (inputs, outputs), as GPT-2's does."""

    def __init__(self, inputs: int, outputs: int, deviation: float = 0.02) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(0, deviation))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


class Attention(nn.Module):
    """Causal self-attention; query, key and value come from one product."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = Conv1D(width, 3 * width)
        self.c_proj = Conv1D(width, width, 0.02 / math.sqrt(2 * depth))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Four times the width and back, with the tanh form of GELU."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.c_fc = Conv1D(width, 4 * width)
        self.c_proj = Conv1D(4 * width, width, 0.02 / math.sqrt(2 * depth))

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and feed-forward, each behind a layer norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, depth)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = FeedForward(width, depth)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Token and position embeddings, `depth` blocks, and a head that shares the embedding's weight."""

    def __init__(self, vocabulary: int, positions: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        words, places = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        for embedding in (words, places):
            nn.init.normal_(embedding.weight, 0, 0.02)
        blocks = nn.ModuleList(Block(width, heads, depth) for _ in range(depth))
        self.transformer = nn.ModuleDict(
            {"wte": words, "wpe": places, "h": blocks, "ln_f": nn.LayerNorm(width)}
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = words.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids (batch, T), T at most `positions`, to logits (batch, T, vocabulary)."""
        parts: Any = self.transformer
        x = parts["wte"](ids) + parts["wpe"](torch.arange(ids.shape[1], device=ids.device))
        for block in parts["h"]:
            x = block(x)
        logits: Tensor = self.lm_head(parts["ln_f"](x))
        return logits


def gpt_workload(case: Case, options: Mapping[str, Any], positions: int) -> Workload:
    """A GPT of the case's options and its loss over all positions; longer sequences get more positions."""
    sequence, vocabulary, width, depth, heads = (
        option(case.model_args, options, key) for key in ("sequence", "vocabulary", "width", "depth", "heads")
    )
    model = GPT(vocabulary, max(positions, sequence), width, depth, heads)
    return Workload(model, loss=token_loss, sample=Sample((sequence,), vocabulary, tokens=True))
