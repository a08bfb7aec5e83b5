rm shapes/all_in_one.py
