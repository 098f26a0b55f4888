"""Does the batch change what a model says? How often, where, why, and what mends it."""
