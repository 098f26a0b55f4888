"""Floor 3: one file per framework, named after it. Each imports its framework; none imports another."""
