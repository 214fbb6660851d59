"""LoRA and OFT: configuration, attachment, checks. One file per adapter, in PEFT format."""
