//! One client leaves the others their turn.

use farshore_node::exports::{Exports, Rules};
use farshore_node::session::{Next, Session};
use farshore_node::space::{Budget, Pages};
use std::sync::Arc;
use std::time::Duration;

/// A session with an export of 64 MiB, and what it has been sent.
fn entered() -> Session {
    let rules = Rules { bytes: 64 << 20, most: 1, keep: Duration::ZERO, tokens: None, pages: Pages::Small };
    let mut out = Vec::new();
    let mut session = Session::new(Exports::new(rules, Arc::new(Budget::new(64 << 8))), &mut out);
    // Fixed newstyle without zeros; EXPORT_NAME, of a name of one byte.
    let hello = [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &1_u32.to_be_bytes(), &1_u32.to_be_bytes(), b"x"].concat();
    assert_eq!(session.feed(&mut &hello[..], &mut out), Next::Input);
    assert!(session.is_in());
    session
}

#[test]
fn small_requests_for_much_work_leave_others_their_turn() {
    const NO_HOLE: u16 = 2;
    let mut session = entered();
    let mut requests = Vec::new();
    for cookie in 0..50_u64 {
        requests.extend([&0x2560_9513_u32.to_be_bytes()[..], &NO_HOLE.to_be_bytes(), &6_u16.to_be_bytes()].concat());
        requests.extend([&cookie.to_be_bytes()[..], &0_u64.to_be_bytes(), &(4_u32 << 20).to_be_bytes()].concat());
    }
    let (mut input, mut turns) = (&requests[..], 0);
    let mut out = Vec::new();
    while session.feed(&mut input, &mut out) == Next::Later {
        turns += 1;
    }
    assert_eq!((turns, out.len(), input.len()), (200, 50 * 16, 0), "a MiB in each turn");
}
