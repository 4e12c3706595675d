"""The vision transformer (Dosovitskiy et al., 2020, arXiv:2010.11929), keys and shapes equal to torchvision's."""

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

EPS = 1e-6


class Block(nn.Module):
    """Self-attention and a feed-forward part, each behind a layer norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=EPS)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=EPS)
        # parameters at 0 and 3: torchvision has dropout, of probability 0, between and behind
        self.mlp = nn.Sequential(
            OrderedDict({"0": nn.Linear(width, 4 * width), "1": nn.GELU(), "3": nn.Linear(4 * width, width)})
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    """Position embedding, `depth` blocks and a last layer norm."""

    def __init__(self, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, length, width).normal_(0, 0.02))
        self.layers = nn.Sequential(
            OrderedDict({f"encoder_layer_{number}": Block(width, heads) for number in range(depth)})
        )
        self.ln = nn.LayerNorm(width, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(self.layers(x + self.pos_embedding))


class VisionTransformer(nn.Module):
    """Patches and a class token through an encoder; the class token's output is classified."""

    def __init__(self, image_size: int, patch: int, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.encoder = Encoder((image_size // patch) ** 2 + 1, width, depth, heads)
        self.heads = nn.Sequential(OrderedDict({"head": nn.Linear(width, classes)}))
        nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / (3 * patch**2)))
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None:
                nn.init.zeros_(layer.bias)
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Images (batch, 3, image_size, image_size) to logits (batch, classes)."""
        x = self.conv_proj(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)
        logits: Tensor = self.heads(self.encoder(x)[:, 0])
        return logits
