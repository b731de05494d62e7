"""The graph of the model as people read it: which place reads which, and in which step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fusewright.compiler.compilation import make
from fusewright.report.run_report import GraphNode, ModelGraph
from fusewright.targets.target import TARGETS


def graph_of(model: nn.Module, *inputs: Tensor) -> ModelGraph:
    made = make(model, [*inputs], TARGETS["cpu"])
    return made.told("", made.shared.function_of).graph


def named(graph: ModelGraph) -> dict[str, GraphNode]:
    return {node.name: node for node in graph.nodes}


def reads(graph: ModelGraph, name: str) -> set[str]:
    return {graph.nodes[k].name for k in named(graph)[name].reads}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, image: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(image)
        z = self.up(y).view(-1, 2, 4)
        z = torch.tanh(z) + shift
        return y, z


def test_places_read_places() -> None:
    graph = graph_of(Residual(), torch.randn(4, 8), torch.randn(4, 2, 4))
    assert [*named(graph)] == ["image", "shift", "self.norm", "self.up", "tanh", "add"]
    assert reads(graph, "self.norm") == {"image"}, "parameters are no part of it"
    assert reads(graph, "tanh") == {"self.up"}, "through the view"
    assert reads(graph, "add") == {"tanh", "shift"}
    first = Residual.forward.__code__.co_firstlineno
    assert named(graph)["self.up"].line == first + 2
    assert named(graph)["image"].step is named(graph)["image"].line is None
    assert [graph.nodes[k].name for k in graph.outputs] == ["self.norm", "add"]


def test_each_place_is_in_its_step() -> None:
    graph = graph_of(Residual(), torch.randn(4, 8), torch.randn(4, 2, 4))
    steps = {name: node.step for name, node in named(graph).items()}
    assert steps["tanh"] == steps["add"], "one kernel"
    assert steps["self.norm"] != steps["tanh"]
    ups = [node.step for node in graph.nodes if node.name == "self.up"]
    kinds = [graph.steps[step or 0].kind for step in (steps["self.norm"], *ups, steps["add"])]
    assert kinds == ["fused", "library", "fused", "fused"]
    assert ups[1] == steps["tanh"], "its bias is added there"
    assert graph.row_of == (0, 1, 2)
    assert named(graph)["self.norm"].operators[0] == "mean"


def test_a_loop_makes_no_circle() -> None:
    """Two places of one kernel that take turns are as many nodes as the graph needs."""

    class Turns(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = torch.tanh(x)
                x = torch.relu(x * 0.5)
            return x

    graph = graph_of(Turns(), torch.randn(4, 8))
    assert all(k < place for place, node in enumerate(graph.nodes) for k in node.reads)
    names = [node.name for node in graph.nodes]
    assert names.count("tanh") == 3
    assert len({node.step for node in graph.nodes[1:]}) == 1


def test_equal_blocks_are_told_of_by_one_row() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return x

    graph = graph_of(Stack(), torch.randn(4, 8))
    assert graph.row_of == (0, 1) * 3
    assert {"self.layers[0]", "self.layers[2]"} <= {*named(graph)}


def test_a_call_with_several_results_is_one_node() -> None:
    class Best(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            values, places = torch.sort(x)
            return values * 2, places

    graph = graph_of(Best(), torch.randn(4, 8))
    assert [node.name for node in graph.nodes] == ["x", "sort", "mul"]
    assert named(graph)["sort"].shape == "[batch, 8], [batch, 8]"
    assert len(graph.steps) == 2, "taking one of its results is no step"
