"""`python -m enginewright` is the `enginewright` command."""

from enginewright.serve.cli import main

main()
