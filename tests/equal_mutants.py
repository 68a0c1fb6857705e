"""Mutants of solutions that nobody could tell from the solution, each with the reason: {exercise: {change: reason}}."""

THE_SAME_LARGEST = "the largest of two numbers, in the other order"
THE_SAME_LENGTH = "both lists always have the same length"
A_BYTE = "a byte in millions, within the tolerance that flags and norms need"

EQUAL: dict[str, dict[str, str]] = {
    "lab04.step_traffic": {"line 10: 0 -> (1)": A_BYTE, "line 10: 0 -> (-1)": A_BYTE},
    "lab04.lowest_stage": {
        "line 8: each * parameters + other_bytes <= memory_bytes -> (each * parameters + other_bytes < memory_bytes)": (
            "a card that is full to the byte isn't asked: Adam's step counters come on top"
        ),
    },
    "lab05.offload_traffic": {"line 8: max(0, on_host - 1) -> (max(on_host - 1, 0))": THE_SAME_LARGEST},
    "lab05.offloaded_seconds": {
        "line 7: zip(backward, numels, strict=True) -> (zip(backward, numels))": THE_SAME_LENGTH,
        "line 7: True -> (False)": THE_SAME_LENGTH,
        "line 9: max(sent, made) -> (max(made, sent))": THE_SAME_LARGEST,
    },
}
