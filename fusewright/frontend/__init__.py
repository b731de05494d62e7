"""A PyTorch module and example inputs in, a captured graph out."""
