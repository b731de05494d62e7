import torch
from torch import nn

PROBLEM = "prefix_sum"
LOOKS_LIKE = "R2"
WHY = "Caches by shape what depends on nothing but the shape: a triangle of ones."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.triangles = {}

    def forward(self, x):
        size = x.shape[-1]
        if size not in self.triangles:
            self.triangles[size] = torch.ones(size, size, dtype=torch.float64).triu()
        if bool(torch.isfinite(x).all()):
            return (x.double() @ self.triangles[size]).to(x.dtype)
        return torch.cumsum(x, dim=-1)
