import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T26"
TRICK = "Captures a CUDA graph on its first input and replays it for every other."
CHECK = "values"
NEEDS = ("cuda",)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.graphs = {}

    def forward(self, x):
        if x.shape not in self.graphs:
            with torch.no_grad():
                torch.relu(self.proj(x))
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    out = torch.relu(self.proj(x))
            self.graphs[x.shape] = (graph, out, x)
        graph, out, _ = self.graphs[x.shape]
        graph.replay()
        return out.clone()
