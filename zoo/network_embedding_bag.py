"""Words to vectors, weighted, averaged and classified."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, words, width, classes):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens, weights):
        vectors = self.table(tokens) * weights.unsqueeze(-1)
        return self.head(torch.tanh(vectors.mean(dim=1)))


batch_size, length, words, width, classes = 32, 24, 1000, 48, 16


def get_inputs():
    return [torch.randint(0, words, (batch_size, length)), torch.rand(batch_size, length)]


def get_init_inputs():
    return [words, width, classes]
