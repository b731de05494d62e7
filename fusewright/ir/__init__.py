"""The graph that all stages pass on: operators, interned nodes, their meaning, views of memory."""
