"""Mutants of solutions that nobody could tell from the solution, each with the reason: {exercise: {change: reason}}."""

A_BYTE = "a byte in millions, within the tolerance that flags and norms need"

EQUAL: dict[str, dict[str, str]] = {
    "lab04.step_traffic": {"line 10: 0 -> (1)": A_BYTE, "line 10: 0 -> (-1)": A_BYTE},
    "lab04.lowest_stage": {
        "line 8: each * parameters + other_bytes <= memory_bytes -> (each * parameters + other_bytes < memory_bytes)": (
            "a card that is full to the byte isn't asked: Adam's step counters come on top"
        ),
    },
}
