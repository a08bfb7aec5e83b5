import csv
import sys


def main():
    contacts, columns = {}, set()
    for path in sys.argv[1:]:
        with open(path, newline="") as file:
            rows = csv.DictReader(file)
            if "mail" not in (rows.fieldnames or []):
                sys.exit(1)
            columns.update(rows.fieldnames)
            for row in rows:
                known = contacts.setdefault(row["mail"].lower(), {})
                known.update({key: value for key, value in row.items() if value}, mail=row["mail"].lower())
    writer = csv.DictWriter(sys.stdout, sorted(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(contacts[mail] for mail in sorted(contacts))


main()
