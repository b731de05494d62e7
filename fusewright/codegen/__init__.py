"""Code generation: one generated body per kernel, two languages around it."""
