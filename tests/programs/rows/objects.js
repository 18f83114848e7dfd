// Records with strings and arrays, gone through twice; the argument is how many.
const count = Number(process.argv[2]);
const rows = [];
for (let number = 1; number <= count; number++) {
    rows.push({ number, name: "row number " + number, parts: [number, number * 2, number * 3, number * 4, number * 5, number * 6], sum: 0 });
}
for (const row of rows) {
    for (const part of row.parts) row.sum += part;
}
let sum = 0, letters = 0;
for (const row of rows) {
    sum = (sum * 31 + row.sum) % 1000007;
    letters += row.name.length;
}
console.log(sum, letters);
