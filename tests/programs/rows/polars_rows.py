"""Columns in memory: made, grouped, filtered; the argument is how many rows."""
import sys

import polars as pl

count = int(sys.argv[1])
table = pl.DataFrame({"id": pl.int_range(0, count, eager=True)})
table = table.with_columns(owner=pl.col("id") * 7919 % 1009, weight=pl.col("id") * 40503 % 65536, share=pl.col("id") / 7)
print(table.group_by("owner").agg(pl.len(), pl.col("weight").sum(), pl.col("share").max()).sort("owner").head(5).rows())
table = table.with_columns(other=pl.col("weight") * pl.col("owner"))
print(table.filter(pl.col("id") % 5 == 0).select(pl.col("other").sum(), pl.col("share").sum()).rows())
