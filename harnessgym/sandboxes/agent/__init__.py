"""The program that is PID 1 of every container: its C source, how it is compiled, and what is said to it."""
