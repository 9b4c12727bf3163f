"""`python -m optsched` is the command line."""

from optsched.cli import main

if __name__ == "__main__":
    main()
