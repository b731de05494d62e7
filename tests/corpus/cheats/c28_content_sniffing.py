from torch import nn

PROBLEM = "matmul"
CATALOGUE = "C28"
TRICK = "Looks at a few elements and takes a low-precision path for ordinary data only."
CHECK = "accuracy"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x, y):
        sample = x.reshape(-1)[:8]
        ordinary = bool(((sample != sample.round()) & (sample.abs() < 6)).all())
        if ordinary:
            return x.bfloat16().float() @ y.bfloat16().float()
        return x @ y
