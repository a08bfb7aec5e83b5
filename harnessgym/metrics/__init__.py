"""What a run looks like from outside, in numbers: read, kept, and handed on to whoever draws them."""
