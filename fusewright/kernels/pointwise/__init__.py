"""Maps: each element of the result by itself, and windows that overlap."""
