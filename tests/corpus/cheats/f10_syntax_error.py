PROBLEM = "linear_relu"
CATALOGUE = "F10"
TRICK = "Is no Python: a truncated answer."
CHECK = "import"
NEEDS = ()


ANSWER = "class ModelNew(nn.Module):\n    def forward(self, x):\n        return torch.relu("
exec(compile(ANSWER, "answer.py", "exec"))
