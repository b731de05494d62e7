"""This machine -> what it has, what that allows, what to install: `fusewright doctor`."""
