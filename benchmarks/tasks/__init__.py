"""What shipped tasks and environments cost, and whether anything of them stays behind."""
