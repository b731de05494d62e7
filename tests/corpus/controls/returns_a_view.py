from torch import nn

PROBLEM = "head_view"
LOOKS_LIKE = "C8"
WHY = "Returns a view of its input, as eager does."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).permute(0, 2, 1, 3)
