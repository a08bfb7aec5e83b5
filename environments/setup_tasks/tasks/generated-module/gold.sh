cd repo
python3 tools/make_units.py --out gauge/_units.py
