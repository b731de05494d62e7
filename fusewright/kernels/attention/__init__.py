"""Attention: softmax of scores between two matrix products, in one kernel."""
