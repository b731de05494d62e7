"""What every package may use: files, progress, problem files, arguments of a call."""
