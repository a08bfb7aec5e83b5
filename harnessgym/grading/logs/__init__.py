"""Log parsers, one file for each family of test runners. `harnessgym.grading.log` lists their names."""
