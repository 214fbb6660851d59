"""What is made of a trained adapter: generations and the loss curve."""
