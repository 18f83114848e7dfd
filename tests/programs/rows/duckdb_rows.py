"""A table in memory: made, grouped, sorted; the argument is how many rows."""
import sys

import duckdb

count = int(sys.argv[1])
database = duckdb.connect(":memory:", config={"threads": 2})
database.execute(f"""create table item as select i as id, (i * 7919) % 100003 as owner, hash(i) as weight, hash(i + 7) as other, hash(i * 3) as third
                     from range({count}) r(i)""")
print(database.execute("select count(*), sum(owner), bit_xor(weight), bit_xor(other), bit_xor(third) from item").fetchall())
print(database.execute("select owner % 16 as part, count(*), bit_xor(weight), max(other) from item group by part order by part").fetchall())
database.execute("update item set owner = owner + 1 where id % 4 = 0")
print(database.execute("select sum(owner), min(weight) from item").fetchall())
