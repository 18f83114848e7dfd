//! What `--encrypt` costs a page: `cargo run --release -p farshore-backend --example encrypt_cost`.
//!
//! Prints the best of several rounds, since whatever else runs only adds; and how long it takes to copy a page, as a measure.

use farshore_backend::Cipher;
use farshore_core::seams::PageBuf;
use farshore_core::word::Slot;
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: u32 = 50;
const PAGES: usize = 1024;

fn main() {
    let cipher = Cipher::new().unwrap_or_else(|why| {
        eprintln!("{why}");
        std::process::exit(1)
    });
    let plain: Vec<PageBuf> = (0..PAGES).map(|n| PageBuf([n as u8; 4096])).collect();
    let mut stored = vec![PageBuf::ZERO; PAGES];
    let slots: Vec<Slot> = (1..=PAGES as u64).filter_map(Slot::new).collect();
    println!("AES instructions: {}", if aes::hardware_accelerated() { "yes" } else { "no" });
    best("copy a page", || {
        for (from, to) in plain.iter().zip(&mut stored) {
            black_box(to).0.copy_from_slice(&black_box(from).0);
        }
    });
    best("encrypt a page", || {
        for ((from, to), slot) in plain.iter().zip(&mut stored).zip(&slots) {
            cipher.encrypt(*slot, black_box(from), black_box(to));
        }
    });
    best("decrypt a page", || {
        for (page, slot) in stored.iter_mut().zip(&slots) {
            cipher.decrypt(*slot, black_box(page));
        }
    });
}

fn best(what: &str, mut pages: impl FnMut()) {
    let ns = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        pages();
        start.elapsed().as_nanos() as f64 / PAGES as f64
    });
    println!("{what:<16}{:>8.0} ns", ns.fold(f64::INFINITY, f64::min));
}
