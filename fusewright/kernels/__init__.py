"""One package a kernel family: which calls it takes, how they run, the text of their launch."""
