from shapes.all_in_one import describe

print(describe([{"kind": "square", "side": 2}, {"kind": "circle", "radius": 1}]))
