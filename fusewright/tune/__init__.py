"""A compiled model and what there is to choose -> what is fastest on this machine."""
