"""Votes of capsules, routed by agreement for a few rounds."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, rounds):
        super().__init__()
        self.rounds = rounds

    def forward(self, votes):
        logits = votes.new_zeros(votes.shape[:3])
        for _ in range(self.rounds):
            shares = torch.softmax(logits, dim=2).unsqueeze(-1)
            total = (shares * votes).sum(dim=1, keepdim=True)
            square = total.square().sum(dim=-1, keepdim=True)
            squashed = total * square / (1.0 + square) / torch.sqrt(square + 1e-8)
            logits = logits + (votes * squashed).sum(dim=-1)
        return squashed.squeeze(1)


batch_size, inputs, outputs, width = 4, 128, 10, 16
rounds = 2


def get_inputs():
    return [torch.randn(batch_size, inputs, outputs, width)]


def get_init_inputs():
    return [rounds]
