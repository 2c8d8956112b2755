"""`python -m onepass` is the command `onepass`."""

from onepass.cli import main

if __name__ == "__main__":
    main()
