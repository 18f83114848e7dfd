"""Columns in memory: made, grouped, filtered; the argument is how many rows."""
import sys

import numpy
import pandas

count = int(sys.argv[1])
identity = numpy.arange(count)
table = pandas.DataFrame({"id": identity, "owner": identity * 7919 % 1009, "weight": identity * 40503 % 65536, "share": identity / 7})
print(table.groupby("owner").agg({"weight": "sum", "share": "max"}).head(3).to_string())
table["other"] = table["weight"] * table["owner"]
part = table[table["id"] % 5 == 0]
print(part["other"].sum(), f"{part['share'].sum():.3f}", table["weight"].rolling(3).sum().max())
