"""`make bench NAME=async`: what `benchmarks.asynchrony` does, under the name that no import statement can
say.
"""

from benchmarks.asynchrony.run import main

if __name__ == "__main__":
    main()
