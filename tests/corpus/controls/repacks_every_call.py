import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "R9"
WHY = "Transposes its weights into a buffer of its own at every call."
TWIN_OF = "repacks_when_changed"
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.packed = torch.empty(width, units)

    def forward(self, x):
        if torch.is_grad_enabled() and (x.requires_grad or self.proj.weight.requires_grad):
            return torch.relu(x @ self.proj.weight.t() + self.proj.bias)
        self.packed.copy_(self.proj.weight.t())
        return torch.relu(x @ self.packed + self.proj.bias)
