"""What runs inside every image: fine-tuning with LoRA and OFT, and the verification of the image."""

__version__ = "0.1.0"
