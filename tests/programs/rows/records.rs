//! Records with strings and vectors, gone through twice; the argument is how many.

struct Row {
    name: String,
    parts: Vec<u64>,
    sum: u64,
}

fn main() {
    let count: u64 = std::env::args().nth(1).expect("a number").parse().expect("a number");
    let mut rows: Vec<Box<Row>> = Vec::new();
    for number in 1..=count {
        rows.push(Box::new(Row { name: format!("row number {number}"), parts: (1..=12).map(|part| number * part).collect(), sum: 0 }));
    }
    for row in &mut rows {
        row.sum = row.parts.iter().sum();
        row.name.push('!');
    }
    let (mut sum, mut letters) = (0, 0);
    for row in &rows {
        sum = (sum * 31 + row.sum) % 1_000_000_007;
        letters += row.name.len();
    }
    println!("{sum} {letters}");
}
