"""Floor 4: everything that measures. Each benchmark is a program that prints a table and writes JSON."""
