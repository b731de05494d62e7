"""`fusewright.optimize` on a module of someone's own: the call, and the class of the result."""
