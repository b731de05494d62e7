from torch import nn

PROBLEM = "named_moments"
LOOKS_LIKE = "C32"
WHY = "Returns the dictionary that eager returns, computed in two passes."
TWIN_OF = "argmax_by_comparison"
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        mean = x.mean(dim=-1)
        centred = x - mean.unsqueeze(-1)
        return {"mean": mean, "variance": (centred * centred).mean(dim=-1)}
