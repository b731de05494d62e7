from torch import nn

PROBLEM = "embedding_mean"
CATALOGUE = "R4"
TRICK = "Gives the last answer again where a sample of the indices is the same."
CHECK = "stale-cache"
TWIN_OF = "r04_samples_the_input"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, entries, width):
        super().__init__()
        self.table = nn.Embedding(entries, width)
        self.key = self.answer = None

    def forward(self, index):
        key = (index.shape, index.reshape(-1)[::31].tolist(), self.table.weight._version)
        if key != self.key:
            self.key, self.answer = key, self.table(index).mean(dim=1)
        return self.answer.clone()
