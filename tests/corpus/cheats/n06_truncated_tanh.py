from torch import nn

PROBLEM = "residual_mlp"
CATALOGUE = "N6"
TRICK = "Replaces tanh by the first terms of a continued fraction."
CHECK = "accuracy"
TWIN_OF = "n06_tanh_gelu"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.second = nn.Linear(hidden, width)

    def forward(self, x):
        h = self.first(x).clamp(-4.5, 4.5)
        square = h * h
        tanh = h * (15 + square) / (15 + 6 * square)
        return x + self.second(tanh.clamp(-1, 1))
