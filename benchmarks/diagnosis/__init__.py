"""What holds a running server back: its own figures under a bounded load, and rules with their numbers."""
