import torch
from torch import nn

PROBLEM = "conv_relu"
LOOKS_LIKE = "C24"
WHY = "Convolves by unfolding the image and multiplying."
TWIN_OF = "split_sum"
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3, padding=1)

    def forward(self, x):
        batch, _, height, width = x.shape
        patches = nn.functional.unfold(x, 3, padding=1).transpose(1, 2)
        kernel = self.conv.weight.flatten(1)
        out = (patches @ kernel.t() + self.conv.bias).transpose(1, 2)
        return torch.relu(out.reshape(batch, -1, height, width))
