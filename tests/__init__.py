import os

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch loads; a wait that ends is no warning
