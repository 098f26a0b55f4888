"""``python -m sortition``."""

from sortition.cli import main

if __name__ == "__main__":
    main()
