"""What people and machines read of a probe: the terminal, one page, JUnit, a script that shows it again."""
