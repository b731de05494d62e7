from torch import nn

PROBLEM = "row_mean"
LOOKS_LIKE = "C26"
WHY = "Is made for one shape, and says so when it gets another."
NOTES = ("specialised",)
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        if x.shape != (16, 300):
            raise NotImplementedError(f"only (16, 300) is supported, not {tuple(x.shape)}")
        return x.mean(dim=1)
