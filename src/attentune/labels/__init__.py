"""What is made anew before each epoch: which rows it trains on, which of their tokens are masked or labelled."""
