import torch
from torch import nn

PROBLEM = "largest"
LOOKS_LIKE = "C32"
WHY = "Returns a pair that it makes itself, of the type that eager returns."
TWIN_OF = ""
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, pair):
        y = (pair["x"] + pair["shift"]).clamp(min=0)
        values, places = y.sort(dim=1, descending=True, stable=True)
        return torch.return_types.max((values[:, 0].clone(), places[:, 0].clone()))
