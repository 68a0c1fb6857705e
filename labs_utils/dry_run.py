"""`dry_run`: the real model code over tensors that have shapes but no memory, tracked as if they had."""
