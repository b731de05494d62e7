"""Triplet margin loss: three inputs, two distances."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.loss = nn.TripletMarginLoss(margin=margin)

    def forward(self, anchor, positive, negative):
        return self.loss(anchor, positive, negative)


rows, width = 32, 256
margin = 1.0


def get_inputs():
    return [torch.randn(rows, width), torch.randn(rows, width), torch.randn(rows, width)]


def get_init_inputs():
    return [margin]
