"""`python -m harnessgym`."""

from harnessgym.cli import main

main()
