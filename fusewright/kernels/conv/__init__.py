"""Convolutions and transposed convolutions on tensor cores, and what follows them."""
