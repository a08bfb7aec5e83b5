from shapes.report import describe

print(describe([{"kind": "square", "side": 2}, {"kind": "circle", "radius": 1}]))
