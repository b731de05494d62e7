"""The commands as tools of a Model Context Protocol server, within limits."""
