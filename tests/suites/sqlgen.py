"""SQL from a seed: tables with random columns and rows, then statements over them whose answers do not depend on anything but the data.

What would not have one answer is not written: no order by what is equal (every query is ordered by all its columns), no random(), no time, no sums of
floating-point numbers (their last digits depend on the order, which a planner may choose), no names of indexes in answers.
"""

import random

WORDS = ("ash birch cedar date elm fir grape hazel iris jasmine kelp larch maple nettle oak pine quince reed sage thyme ulex vine willow yarrow "
         "zinnia Åland ærø ñandú żubr 東京 грач").split()
TYPES = ("INTEGER", "TEXT", "BLOB", "NUMERIC", "")
CASES = 120
ROWS = (400, 6000)


class Table:
    """A table that exists, with its columns and their kinds."""

    def __init__(self, name, columns):
        self.name, self.columns = name, columns


class Generator:
    """All choices of one seed."""

    def __init__(self, seed):
        self.random = random.Random(f"farshore sql {seed}")
        self.tables, self.views = [], 0

    def pick(self, things):
        """One of them."""
        return self.random.choice(list(things))

    # ------------------------------------------------------------------ values and expressions

    def literal(self):
        """A constant of some type."""
        kind = self.random.randrange(7)
        if kind == 0:
            return "NULL"
        if kind <= 3:
            return str(self.pick([0, 1, -1, 7, 255, 65536, -4096, 9223372036854775807, self.random.randrange(-1000, 100000)]))
        if kind == 4:
            return f"x'{self.random.randbytes(self.random.randrange(1, 20)).hex()}'"
        return "'" + " ".join(self.pick(WORDS) for _ in range(self.random.randrange(1, 4))) + "'"

    def expression(self, columns, depth=0):
        """An expression over columns."""
        roll = self.random.random()
        if depth > 2 or roll < 0.35:
            return self.pick(columns) if columns and roll < 0.28 else self.literal()
        one, two = (self.expression(columns, depth + 1) for _ in range(2))
        form = self.random.randrange(12)
        return [
            f"({one} + {two})", f"({one} || {two})", f"coalesce({one}, {two}, 0)", f"length({one})", f"substr({one}, 1, 3)", f"(({one}) IS ({two}))",
            f"CASE WHEN {self.condition(columns, depth + 1)} THEN {one} ELSE {two} END", f"typeof({one})", f"hex(substr({one}, 1, 8))",
            f"(abs(coalesce(CAST({one} AS INTEGER) % 1000, 0)) * 3)", f"upper({one})", f"instr({one}, {two})",
        ][form]

    def condition(self, columns, depth=0):
        """A condition over columns."""
        one, two = self.expression(columns, depth + 1), self.expression(columns, depth + 1)
        form = self.random.randrange(9)
        if form >= 7 and depth < 2:
            return f"({self.condition(columns, depth + 1)} {self.pick(['AND', 'OR'])} {self.condition(columns, depth + 1)})"
        return [
            f"{one} < {two}", f"{one} = {two}", f"{one} IS NOT NULL", f"{one} BETWEEN {two} AND {self.literal()}", f"{one} IN ({two}, {self.literal()}, {self.literal()})",
            f"{one} LIKE '%{self.pick('aeiouxyz')}%'", f"NOT ({one} > {two})", f"{one} <> {two}", f"{one} >= {two}",
        ][form]

    # ------------------------------------------------------------------ statements

    def create(self):
        """A new table with its rows."""
        name = f"t{len(self.tables)}"
        columns = [(f"c{i}", self.pick(TYPES)) for i in range(self.random.randrange(2, 7))]
        rows, salt = self.random.randrange(*ROWS), self.random.randrange(1 << 30)
        # Rows are computed by sqlite itself: a script that brings them would be mostly data.
        values = []
        for i, (_, kind) in enumerate(columns):
            mixed = f"((n * {2654435761 + 2 * i} + {salt}) % 1000003)"
            values.append({
                "INTEGER": f"CASE WHEN {mixed} % 11 = 0 THEN NULL ELSE {mixed} % {self.pick([7, 100, 5000, 1000003])} END",
                "TEXT": f"'w' || ({mixed} % {self.pick([50, 3000])}) || ' {self.pick(WORDS)} {self.pick(WORDS)}'",
                "BLOB": f"CAST(printf('%0{self.pick([8, 60, 900])}d', {mixed}) AS BLOB)",
                "NUMERIC": f"{mixed} * 10",
                "": f"CASE {mixed} % 3 WHEN 0 THEN {mixed} WHEN 1 THEN 'x' || {mixed} END",
            }[kind])
        self.tables.append(Table(name, [column for column, _ in columns]))
        made = ", ".join(f"{column} {kind}".strip() for column, kind in columns)
        database = self.pick(["", "", "memory."])
        self.tables[-1].name = database + name
        return (f"CREATE TABLE {database}{name}(id INTEGER PRIMARY KEY, {made});\n"
                f"WITH RECURSIVE count(n) AS (VALUES(1) UNION ALL SELECT n + 1 FROM count WHERE n < {rows})\n"
                f"INSERT INTO {database}{name} SELECT n, {', '.join(values)} FROM count;\nSELECT count(*), sum(id) FROM {database}{name};")

    def index(self):
        """A new index, partial at times, on expressions at times."""
        table = self.pick(self.tables)
        database, _, name = table.name.rpartition(".")
        what = ", ".join(self.random.sample(table.columns, self.random.randrange(1, min(3, len(table.columns)) + 1)))
        where = f" WHERE {self.pick(table.columns)} IS NOT NULL" if self.random.random() < 0.2 else ""
        return f"CREATE INDEX {database + '.' if database else ''}i{self.random.randrange(1 << 40)} ON {name}({what}){where};\nANALYZE {table.name};"

    def select(self):
        """A query over one table."""
        table = self.pick(self.tables)
        wanted = [self.expression(table.columns) for _ in range(self.random.randrange(1, 4))]
        order = ", ".join(str(i + 1) for i in range(len(wanted)))
        return f"SELECT {', '.join(wanted)} FROM {table.name} WHERE {self.condition(table.columns)} ORDER BY {order} LIMIT {self.random.randrange(1, 300)};"

    def aggregate(self):
        """Groups of one table."""
        table = self.pick(self.tables)
        key, other = self.pick(table.columns), self.pick(table.columns)
        return (f"SELECT {key} AS k, count(*), count(DISTINCT {other}), min({other}), max({other}), sum(length({other})) FROM {table.name} "
                f"WHERE {self.condition(table.columns)} GROUP BY k HAVING count(*) > {self.random.randrange(3)} ORDER BY k, 2, 3, 4, 5, 6 LIMIT 200;")

    def join(self):
        """Two tables, by what they have in common."""
        left, right = self.pick(self.tables), self.pick(self.tables)
        columns = ["a." + column for column in left.columns] + ["b." + column for column in right.columns]
        kind = self.pick(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
        wanted = [self.expression(columns) for _ in range(2)]
        return (f"SELECT count(*), sum(length(x)), min(x), max(y), count(DISTINCT y) FROM (SELECT {wanted[0]} AS x, {wanted[1]} AS y FROM {left.name} a {kind} {right.name} b "
                f"ON a.id = b.id {self.pick(['+ 1', '* 2', '', '- 7'])} AND {self.condition(columns, 1)});")

    def window(self):
        """A window function, ordered by the key so that there is one answer."""
        table = self.pick(self.tables)
        what = self.pick(["row_number()", "rank()", "ntile(7)", f"lag({self.pick(table.columns)}, 2)", f"first_value({self.pick(table.columns)})", "count(*)",
                          f"group_concat(substr({self.pick(table.columns)}, 1, 2))"])
        frame = self.pick(["", " ROWS BETWEEN 3 PRECEDING AND 2 FOLLOWING", " GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW"])
        if what.startswith(("row_number", "rank", "ntile", "lag")):
            frame = ""
        return (f"SELECT count(*), sum(length(w)), min(w), max(w) FROM (SELECT {what} OVER (PARTITION BY {self.pick(table.columns)} ORDER BY id{frame}) AS w FROM {table.name} WHERE id < 2500);")

    def compound(self):
        """Sets of rows."""
        one, two = self.pick(self.tables), self.pick(self.tables)
        return (f"SELECT count(*), min(v), max(v) FROM (SELECT {self.pick(one.columns)} AS v FROM {one.name} {self.pick(['UNION', 'UNION ALL', 'EXCEPT', 'INTERSECT'])} "
                f"SELECT {self.pick(two.columns)} FROM {two.name});")

    def change(self):
        """Rows that change, within a transaction that may be taken back."""
        table = self.pick(self.tables)
        column = self.pick(table.columns)
        statement = self.pick([
            f"UPDATE {table.name} SET {column} = {self.expression(table.columns)} WHERE id % {self.random.randrange(2, 40)} = 1;",
            f"DELETE FROM {table.name} WHERE id % {self.random.randrange(20, 90)} = 3;",
            f"INSERT INTO {table.name}({column}) SELECT {self.expression(table.columns)} FROM {table.name} WHERE id % 50 = 2 ORDER BY id;",
            f"REPLACE INTO {table.name}(id, {column}) SELECT id, {self.expression(table.columns)} FROM {table.name} WHERE id % 30 = 4;",
        ])
        end = self.pick(["COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT s; DELETE FROM " + table.name + "; ROLLBACK TO s; COMMIT"])
        return f"BEGIN; {statement} SELECT changes(); {end};\n{self.whole(table)}"

    def whole(self, table):
        """A table in one line."""
        return f"SELECT count(*), sum(id), {', '.join(f'sum(length({column})), min({column}), max({column})' for column in table.columns)} FROM {table.name};"

    def upkeep(self):
        """What goes over the whole database."""
        return self.pick(["VACUUM; PRAGMA main.integrity_check;", "PRAGMA memory.integrity_check; PRAGMA quick_check;", "REINDEX; PRAGMA integrity_check;", "ANALYZE; PRAGMA main.page_count;"])

    def case(self):
        """A title and a statement."""
        name = self.random.choices(["select", "aggregate", "join", "window", "compound", "change", "index", "create", "upkeep"], [30, 15, 15, 12, 6, 15, 5, 3, 2])[0]
        return name, getattr(self, name)()


def script(seed):
    """Titles and texts of a seed's cases."""
    generator = Generator(seed)
    start = ("PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY; PRAGMA journal_mode = " + generator.pick(["MEMORY", "DELETE", "WAL"]) +
             "; ATTACH ':memory:' AS memory; PRAGMA memory.cache_size = -65536;")
    yield "start", start
    for _ in range(3):
        yield "create", generator.create()
    for _ in range(CASES):
        yield generator.case()
    for table in generator.tables:
        yield f"whole {table.name}", generator.whole(table)
    yield "end", "PRAGMA main.integrity_check; PRAGMA memory.integrity_check;"
