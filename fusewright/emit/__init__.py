"""Plan and kernels -> the Python file that a user gets."""
