"""What sampling and structured output cost a step of an engine, and what a step costs in the first place."""
