import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "T26"
WHY = "Replays a CUDA graph on a copy of each input, for weights where they are, and clones the answer."
NOTES = ("forward-only",)
NEEDS = ("cuda",)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.graphs = {}

    @torch.no_grad()
    def forward(self, x):
        if x.numel() == 0:
            return torch.relu(self.proj(x))
        key = (x.shape, *(p.data_ptr() for p in self.parameters()))
        if key not in self.graphs:
            fixed = x.clone()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.relu(self.proj(fixed))
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = torch.relu(self.proj(fixed))
            self.graphs[key] = (graph, fixed, out)
        graph, fixed, out = self.graphs[key]
        fixed.copy_(x)
        graph.replay()
        return out.clone()
