"""What counts as a small fault: each changes one place of a source, and never only words."""

import ast

import pytest
from mutants import mutants


def texts(source, *kinds):
    return [mutated for _, mutated in mutants(source, kinds)]


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ("a < b", ["a >= b", "a <= b"]),
        ("a == 'x'", ["a != 'x'", "a == 'x?'"]),
        ("a = 3", ["a = 4", "a = 2", "a = 6"]),
        ("a = 1.0", ["a = 1.1"]),
        ("a = True", ["a = False"]),
        ("a + b", ["a - b", "a", "b"]),
        ("a // b", ["a * b", "a", "b"]),
        ("-a", ["a"]),
        ("a and b", ["a or b", "b", "a"]),
        ("not a", ["a"]),
        ("a if b else c", ["a", "c"]),
        ("min(a, b)", ["pass", "max(a, b)", "min(a)", "min(b, a)", "a"]),
        ("f(a, b=c)", ["pass", "f(a)", "a"]),
        ("[a for a in b if c]", ["[a for a in b]"]),
        ("if a:\n    b", ["if True:\n    b", "if False:\n    b"]),
        ("del a", ["pass"]),
        ("a.b = c", ["pass"]),
        ("a += b", ["a -= b", "pass"]),
        ("def f():\n    return a", ["def f():\n    return None"]),
        ("a = b", []),
        ('"""Words."""', []),
        ("a = f'{b + 1}'", []),
        ("def f(a: Literal[1] = b) -> Literal[2]:\n    c", []),
        ("raise E('words', 1)", ["pass"]),
        ("__slots__ = ('a', 1)", []),
    ],
)
def test_faults_of_a_line_are_few_and_small(source, faults):
    normal = [ast.unparse(ast.parse(text)) for text in texts(source)]
    assert normal == [ast.unparse(ast.parse(fault)) for fault in faults]


def test_a_fault_changes_one_place_and_keeps_the_rest_to_the_letter():
    source = "x = 1  # why\n\n\ndef f(é):\n    return é < 2  # é\n"
    told = dict(mutants(source, ["comparison"]))
    assert told == {
        "line 5: é < 2 -> (é >= 2)": source.replace("é < 2", "(é >= 2)"),
        "line 5: é < 2 -> (é <= 2)": source.replace("é < 2", "(é <= 2)"),
    }
