"""`python -m kappamq`: the command line."""

from kappamq.cli.main import main

if __name__ == "__main__":
    main()
