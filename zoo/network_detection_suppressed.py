"""A detection head over a feature map, and the boxes that greedy suppression keeps."""

import torch
import torch.nn as nn


class Head(nn.Module):
    def __init__(self, channels, hidden):
        super().__init__()
        self.tower = nn.Sequential(
            nn.Conv2d(channels, hidden, 3, padding=1),
            nn.GroupNorm(4, hidden),
            nn.SiLU(),
            nn.Conv2d(hidden, hidden, 3, padding=1),
            nn.GroupNorm(4, hidden),
            nn.SiLU(),
        )
        self.score = nn.Conv2d(hidden, 1, 1)
        self.sides = nn.Conv2d(hidden, 4, 1)

    def forward(self, x):
        x = self.tower(x)
        return torch.sigmoid(self.score(x)).flatten(1), self.sides(x).exp().flatten(2)


class Model(nn.Module):
    def __init__(self, channels, hidden, kept, overlap):
        super().__init__()
        self.kept, self.overlap = kept, overlap
        self.head = Head(channels, hidden)

    def suppress(self, boxes, scores):
        # Equal scores have an order of their own.
        prior = torch.linspace(0.0, 0.5, scores.numel(), device=scores.device)
        order = (scores + prior).argsort(descending=True).tolist()
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        kept = []
        while order and len(kept) < self.kept:
            best = order.pop(0)
            kept.append(best)
            low = torch.maximum(boxes[:, :2], boxes[best, :2])
            high = torch.minimum(boxes[:, 2:], boxes[best, 2:])
            shared = (high - low).clamp(min=0).prod(dim=-1)
            hidden = shared > self.overlap * (areas + areas[best] - shared)
            order = [k for k in order if not hidden[k]]
        return kept

    def forward(self, x):
        scores, sides = self.head(x)
        height, width = x.shape[-2:]
        y = torch.arange(height, device=x.device).repeat_interleave(width)
        x = torch.arange(width, device=x.device).repeat(height)
        found = torch.zeros(scores.shape[0], self.kept, 5, device=scores.device)
        for k, (score, side) in enumerate(zip(scores, sides, strict=True)):
            boxes = torch.stack([x - side[0], y - side[1], x + side[2], y + side[3]], dim=-1)
            kept = self.suppress(boxes, score)
            found[k, : len(kept), :4] = boxes[kept]
            found[k, : len(kept), 4] = score[kept]
        return found


batch_size, channels, hidden, size, kept, overlap = 2, 16, 32, 24, 20, 0.437


def get_inputs():
    return [torch.randn(batch_size, channels, size, size)]


def get_init_inputs():
    return [channels, hidden, kept, overlap]
