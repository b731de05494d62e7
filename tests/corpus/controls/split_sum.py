from torch import nn

PROBLEM = "matmul"
LOOKS_LIKE = "N8"
WHY = "Adds up the inner dimension in blocks: another order of summation."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x, y):
        total = x.new_zeros(x.shape[0], y.shape[1])
        for block in range(0, x.shape[1], 32):
            total = total + x[:, block : block + 32] @ y[block : block + 32]
        return total
