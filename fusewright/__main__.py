"""`python -m fusewright` -> the command line."""

from fusewright.cli.main import main

if __name__ == "__main__":
    main()
