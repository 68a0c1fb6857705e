"""The small helper for real code: bytes by tensor, seconds by call, collectives by name."""

from labs_utils.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "labs_utils.profiling.tracker": ("MemoryTracker", "host_memory"),
        "labs_utils.profiling.timing": ("Spread", "time_call", "time_calls"),
        "labs_utils.device": ("usable_cores",),
        "labs_utils.profiling.step_clock": ("StepClock",),
        "labs_utils.profiling.collectives": ("CommunicationCounter",),
    },
)
