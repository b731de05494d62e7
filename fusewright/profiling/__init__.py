"""Where the time of a call goes: each kernel and each call of PyTorch's, of eager and of others."""
