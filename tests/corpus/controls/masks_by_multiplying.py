import torch
from torch import nn

PROBLEM = "masked_mean"
LOOKS_LIKE = "C31"
WHY = (
    "Multiplies by the mask where eager selects; falls back to selecting where that would make NaN."
)
TWIN_OF = "nan_where_eager_has_nan"
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x, mask):
        kept = (
            x * mask if bool(torch.isfinite(x).all()) else torch.where(mask, x, torch.zeros_like(x))
        )
        return kept.sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)
