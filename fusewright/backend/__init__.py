"""The backend of `torch.compile`: graphs of PyTorch's compiler, each through the whole pipeline."""
