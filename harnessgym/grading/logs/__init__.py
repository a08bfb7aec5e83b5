"""Log parsers, a file for each family of test runners. `harnessgym.grading.log` has their names."""
