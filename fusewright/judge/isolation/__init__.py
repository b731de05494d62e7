"""Processes that can reach nobody, and the bytes between them."""
