"""Kernels of our own, in Triton: what Labs 06 and 07 walk through."""

from labs_utils.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "labs_utils.kernels.attention": ("flash_attention",),
        "labs_utils.kernels.attention_forward": ("forward_kernel",),
    },
)
