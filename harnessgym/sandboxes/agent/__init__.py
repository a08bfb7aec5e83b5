"""The program that is PID 1 of every container: its C source, and its wire format."""
