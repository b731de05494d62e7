from torch import nn

PROBLEM = "embedding_mean"
LOOKS_LIKE = "F7"
WHY = "Gathers rows of the table one index at a time."
TWIN_OF = "argmax_by_comparison"
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, entries, width):
        super().__init__()
        self.table = nn.Embedding(entries, width)

    def forward(self, index):
        if index.numel() == 0:
            return self.table(index).mean(dim=1)
        parts = [self.table.weight.index_select(0, column) for column in index.unbind(dim=1)]
        return sum(parts[1:], parts[0]) / len(parts)
