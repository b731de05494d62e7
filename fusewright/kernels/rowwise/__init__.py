"""Reductions along rows: one thread block a row, many rows, or many blocks a row."""
