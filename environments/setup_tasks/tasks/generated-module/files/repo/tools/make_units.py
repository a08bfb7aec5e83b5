"""Makes gauge/_units.py."""

import argparse
import csv
import pathlib

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
options = parser.parse_args()
root = pathlib.Path(__file__).parent.parent
with open(root / "units.csv", newline="") as file:
    metres = {row["unit"]: float(row["metres"]) for row in csv.DictReader(file)}
version = (root / "VERSION").read_text().strip()
text = f"# Made by tools/make_units.py. Do not edit.\nVERSION = {version!r}\nMETRES = {dict(sorted(metres.items()))!r}\n"
pathlib.Path(options.out).write_text(text)
