"""How fast a model could decode, and what stands in the way: by specification, calibrated, by replay."""
