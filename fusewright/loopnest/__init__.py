"""A kernel of the plan -> its loops: addresses, passes over a row, memory that is reused."""
