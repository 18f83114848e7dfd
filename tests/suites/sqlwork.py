"""Workloads for sqlite3 that are written down: each a list of titled cases, with data that sqlite computes itself."""

COUNT = "WITH RECURSIVE count(n) AS (VALUES(1) UNION ALL SELECT n + 1 FROM count WHERE n < {0})"
MIX = "((n * 2654435761 + {0}) % 1000003)"
START = ("start", "PRAGMA cache_size = -131072; PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 0;")
END = ("end", "PRAGMA integrity_check;")


def orders():
    """Customers, orders, lines: joins, groups, sub-queries, views, triggers."""
    yield START
    yield "tables", f"""CREATE TABLE customer(id INTEGER PRIMARY KEY, name TEXT, region INT);
CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INT REFERENCES customer(id), day INT, state TEXT);
CREATE TABLE line(orders INT, number INT, item TEXT, cents INT, count INT, PRIMARY KEY(orders, number)) WITHOUT ROWID;
{COUNT.format(5000)} INSERT INTO customer SELECT n, 'customer ' || {MIX.format(1)}, n % 17 FROM count;
{COUNT.format(60000)} INSERT INTO orders SELECT n, {MIX.format(2)} % 5000 + 1, n % 365, CASE n % 4 WHEN 0 THEN 'open' WHEN 1 THEN 'sent' ELSE 'paid' END FROM count;
{COUNT.format(180000)} INSERT INTO line SELECT n / 3 + 1, n % 3, 'item ' || ({MIX.format(3)} % 900), {MIX.format(4)} % 10000, n % 9 + 1 FROM count;
SELECT (SELECT count(*) FROM customer), (SELECT count(*) FROM orders), (SELECT count(*) FROM line);"""
    yield "indexes", "CREATE INDEX by_customer ON orders(customer, day); CREATE INDEX by_item ON line(item, cents); ANALYZE; SELECT count(*) > 0 FROM sqlite_stat1;"
    yield "three joins", """SELECT region, count(*), sum(cents * count) FROM customer JOIN orders ON orders.customer = customer.id JOIN line ON line.orders = orders.id
WHERE state = 'paid' GROUP BY region ORDER BY region;"""
    yield "correlated", "SELECT id, (SELECT sum(cents) FROM line JOIN orders o ON line.orders = o.id WHERE o.customer = customer.id) AS s FROM customer ORDER BY s DESC, id LIMIT 40;"
    yield "anti-join", "SELECT count(*) FROM customer WHERE NOT EXISTS (SELECT 1 FROM orders WHERE customer = customer.id AND state = 'open' AND day < 100);"
    yield "sort", "SELECT item, cents FROM line ORDER BY cents DESC, item, orders, number LIMIT 60 OFFSET 120000;"
    yield "distinct", "SELECT count(DISTINCT item || cents), count(DISTINCT orders) FROM line;"
    yield "view, trigger", """CREATE VIEW total AS SELECT orders, sum(cents * count) AS cents FROM line GROUP BY orders;
CREATE TABLE log(what TEXT, old INT, new INT);
CREATE TRIGGER watch AFTER UPDATE OF cents ON line WHEN old.cents <> new.cents BEGIN INSERT INTO log VALUES(old.item, old.cents, new.cents); END;
UPDATE line SET cents = cents + 1 WHERE item LIKE 'item 5%';
SELECT count(*), sum(old), sum(new) FROM log; SELECT max(cents), min(cents), count(*) FROM total;"""
    yield "upsert", "INSERT INTO customer SELECT id + 2500, name, 99 FROM customer WHERE true ON CONFLICT(id) DO UPDATE SET region = excluded.region, name = name || '!' RETURNING id % 500 = 0;"
    yield "vacuum", "DELETE FROM line WHERE number = 1; VACUUM; SELECT count(*), sum(cents) FROM line; PRAGMA integrity_check;"
    yield END


def windows():
    """Window functions over partitions and frames."""
    yield START
    yield "table", f"CREATE TABLE trade(id INTEGER PRIMARY KEY, share INT, day INT, price INT);\n{COUNT.format(150000)} INSERT INTO trade SELECT n, n % 40, n / 40, {MIX.format(5)} % 5000 FROM count;"
    for title, text in {
        "running": "sum(price) OVER (PARTITION BY share ORDER BY day)",
        "moving": "max(price) OVER (PARTITION BY share ORDER BY day ROWS BETWEEN 30 PRECEDING AND CURRENT ROW)",
        "rank": "dense_rank() OVER (PARTITION BY day ORDER BY price)",
        "lead": "lead(price, 5, -1) OVER (PARTITION BY share ORDER BY day, id)",
        "groups": "count(*) OVER (PARTITION BY share ORDER BY price GROUPS BETWEEN 2 PRECEDING AND 2 FOLLOWING)",
        "exclude": "sum(price) OVER (PARTITION BY share ORDER BY day ROWS BETWEEN 4 PRECEDING AND 4 FOLLOWING EXCLUDE CURRENT ROW)",
    }.items():
        yield title, f"SELECT share, sum(w), min(w), max(w) FROM (SELECT share, {text} AS w FROM trade) GROUP BY share ORDER BY share;"
    yield "percent", "SELECT share, count(*) FROM (SELECT share, ntile(100) OVER (PARTITION BY share ORDER BY price, id) AS p FROM trade) WHERE p >= 99 GROUP BY share ORDER BY share;"
    yield END


def full_text():
    """FTS5: its index is many blobs that are merged."""
    yield START
    words = ", ".join(f"'{word}'" for word in "amber basalt copper diamond emerald flint granite hematite iron jade kaolin lapis mica nickel opal pyrite quartz ruby silver topaz".split())
    yield "corpus", f"""CREATE TABLE word(n INTEGER PRIMARY KEY, w TEXT);
INSERT INTO word SELECT key, value FROM json_each(json_array({words}));
CREATE VIRTUAL TABLE page USING fts5(title, body, tokenize = 'porter unicode61');
{COUNT.format(12000)} INSERT INTO page SELECT 'page ' || n, (SELECT group_concat(w || (n * 7 % 31), ' ') FROM word WHERE (n * 31 + word.n * 17) % 5 < 3) || ' ' || printf('%c%d', 97 + n % 26, n % 977) FROM count;
SELECT count(*) FROM page;"""
    for query in ("amber3 AND basalt3", "copper* NOT diamond5", "NEAR(emerald7 granite7, 4)", '"flint2 granite2"', "title : 77", "a1 OR b2 OR c3", "quartz9 ^amber9"):
        yield query, (f"SELECT count(*), min(n), max(n), sum(length(s)) FROM (SELECT rowid AS n, snippet(page, 1, '[', ']', '…', 8) AS s FROM page('{query}') "
                      "ORDER BY rowid LIMIT 20000);")
    yield "rank", "SELECT rowid, highlight(page, 1, '<', '>') FROM page('amber11 OR ruby11') ORDER BY rowid LIMIT 20;"
    yield "changes", "DELETE FROM page WHERE rowid % 7 = 0; UPDATE page SET body = body || ' zircon' WHERE rowid % 5 = 0; SELECT count(*) FROM page('zircon');"
    yield "optimize", "INSERT INTO page(page) VALUES('optimize'); INSERT INTO page(page) VALUES('integrity-check'); SELECT count(*), sum(length(block)) > 0 FROM page_data;"
    yield END


def json():
    """JSON made, taken apart, and changed."""
    yield START
    yield "documents", f"""CREATE TABLE doc(id INTEGER PRIMARY KEY, j TEXT);
{COUNT.format(40000)} INSERT INTO doc SELECT n, json_object('id', n, 'name', 'n' || {MIX.format(6)}, 'tags', json_array(n % 3, n % 5, 'x' || n % 7), 'in', json_object('deep', json_array(json_object('v', n * 3)))) FROM count;"""
    yield "extract", "SELECT sum(j ->> '$.id'), count(DISTINCT j ->> '$.tags[2]'), max(json_extract(j, '$.in.deep[0].v')) FROM doc;"
    yield "each", "SELECT value, count(*) FROM doc, json_each(doc.j, '$.tags') GROUP BY value ORDER BY typeof(value), value;"
    yield "tree", "SELECT fullkey, count(*), sum(length(atom)) FROM doc, json_tree(doc.j) WHERE doc.id <= 8000 GROUP BY fullkey ORDER BY fullkey;"
    yield "change", "UPDATE doc SET j = json_remove(json_set(j, '$.new', id * 2), '$.name') WHERE id % 2; SELECT sum(length(j)), sum(json_valid(j)) FROM doc;"
    yield "patch", "SELECT sum(length(json_patch(j, '{\"in\":null,\"more\":[1,2]}'))) FROM doc;"
    yield "array", "SELECT length(json_group_array(json(j))), length(json_group_object(id, j)) FROM doc;"
    yield END


def recursion():
    """Recursive queries: primes, a graph, a puzzle."""
    yield START
    yield "primes", f"{COUNT.format(3000)} SELECT count(*), sum(n) FROM count a WHERE n > 1 AND NOT EXISTS (SELECT 1 FROM count b WHERE b.n > 1 AND b.n * b.n <= a.n AND a.n % b.n = 0);"
    yield "graph", f"""CREATE TABLE edge(a INT, b INT, PRIMARY KEY(a, b)) WITHOUT ROWID;
{COUNT.format(60000)} INSERT OR IGNORE INTO edge SELECT {MIX.format(8)} % 20000, {MIX.format(99)} % 20000 FROM count;
WITH RECURSIVE reach(x) AS (VALUES(1) UNION SELECT b FROM reach JOIN edge ON a = x) SELECT count(*), sum(x) FROM reach;"""
    yield "mandelbrot", """WITH RECURSIVE xaxis(x) AS (VALUES(-2.0) UNION ALL SELECT x + 0.05 FROM xaxis WHERE x < 1.2), yaxis(y) AS (VALUES(-1.0) UNION ALL SELECT y + 0.1 FROM yaxis WHERE y < 1.0),
m(iter, cx, cy, x, y) AS (SELECT 0, x, y, 0.0, 0.0 FROM xaxis, yaxis UNION ALL SELECT iter + 1, cx, cy, x * x - y * y + cx, 2.0 * x * y + cy FROM m WHERE (x * x + y * y) < 4.0 AND iter < 28),
m2(iter, cx, cy) AS (SELECT max(iter), cx, cy FROM m GROUP BY cx, cy), a(t) AS (SELECT group_concat(substr(' .+*#', 1 + min(iter / 7, 4), 1), '') FROM m2 GROUP BY cy)
SELECT group_concat(rtrim(t), char(10)) FROM a;"""
    yield "sudoku", """WITH RECURSIVE input(sud) AS (VALUES('53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79')),
digits(z, lp) AS (VALUES('1', 1) UNION ALL SELECT CAST(lp + 1 AS TEXT), lp + 1 FROM digits WHERE lp < 9),
x(s, ind) AS (SELECT sud, instr(sud, '.') FROM input UNION ALL SELECT substr(s, 1, ind - 1) || z || substr(s, ind + 1), instr(substr(s, 1, ind - 1) || z || substr(s, ind + 1), '.')
FROM x, digits AS z WHERE ind > 0 AND NOT EXISTS (SELECT 1 FROM digits AS lp WHERE z.z = substr(s, ((ind - 1) / 9) * 9 + lp, 1) OR z.z = substr(s, ((ind - 1) % 9) + (lp - 1) * 9 + 1, 1)
OR z.z = substr(s, (((ind - 1) / 3) % 3) * 3 + ((ind - 1) / 27) * 27 + lp + ((lp - 1) / 3) * 6, 1))) SELECT s FROM x WHERE ind = 0;"""
    yield END


def transactions():
    """Write-ahead log, savepoints, blobs, a second connection's view by backup and restore."""
    yield START
    yield "log", f"PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 100; CREATE TABLE blob(id INTEGER PRIMARY KEY, b BLOB);\n{COUNT.format(4000)} INSERT INTO blob SELECT n, CAST(printf('%04000d', n) AS BLOB) FROM count;"
    for number in range(12):
        yield f"savepoint {number}", (f"BEGIN; UPDATE blob SET b = b || x'{number:02x}' WHERE id % 12 = {number}; SAVEPOINT one; DELETE FROM blob WHERE id % 3 = {number % 3}; "
                                      f"SELECT count(*) FROM blob; ROLLBACK TO one; {'COMMIT' if number % 4 else 'ROLLBACK'}; SELECT count(*), sum(length(b)), max(hex(substr(b, -1))) FROM blob;")
    yield "checkpoint", "PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE; PRAGMA integrity_check;"
    yield "backup", ".backup copy.db\nATTACH 'copy.db' AS copy; SELECT count(*), sum(length(b)) FROM copy.blob; DETACH copy; DELETE FROM blob;\n.restore main copy.db\nSELECT count(*) FROM blob; PRAGMA integrity_check;"
    yield "dump", ".mode quote\nSELECT id, length(b), hex(substr(b, 3990)) FROM blob WHERE id % 40 = 0;\n.mode list\n.sha3sum"
    yield "fill and vacuum", "PRAGMA auto_vacuum = FULL; VACUUM; DELETE FROM blob WHERE id > 500; PRAGMA integrity_check; SELECT count(*) FROM blob;"
    yield END


WORKLOADS = {"orders": orders, "windows": windows, "full-text": full_text, "json": json, "recursion": recursion, "transactions": transactions}
SHORT = ("orders", "full-text", "transactions")
