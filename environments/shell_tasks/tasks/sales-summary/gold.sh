python3 - <<'END'
import json
import re

header, *lines = open("orders.csv").read().splitlines()
seen, summary, rejected = set(), {}, [header]
for line in lines:
    order, region, units, price = line.split(",")
    region = region.strip().lower()
    valid = region and re.fullmatch(r"[1-9]\d*", units) and re.fullmatch(r"\d+(\.\d+)?", price)
    if not valid:
        rejected.append(line)
    elif order not in seen:
        seen.add(order)
        entry = summary.setdefault(region, {"orders": 0, "units": 0, "revenue": 0.0})
        entry["orders"] += 1
        entry["units"] += int(units)
        entry["revenue"] += int(units) * float(price)
json.dump(summary, open("summary.json", "w"))
open("rejected.csv", "w").write("\n".join(rejected) + "\n")
END
