"""`harnessgym rollout`: rolls out tasks without training and collects the results."""
