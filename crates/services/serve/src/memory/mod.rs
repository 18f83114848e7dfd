//! Memory that may be far away. All of this crate's `unsafe` is here.

mod environment;
mod region;

pub use environment::{Far, Unnamed, create, open_far};
pub use region::Region;

/// In tests, every other access or so is one to a page that is far away: others run meanwhile, unless the caller holds.
#[cfg(test)]
pub fn comes_from_far() {
    thread_local! { static STATE: std::cell::Cell<u32> = const { std::cell::Cell::new(0x9e37_79b9) } }
    if farshore_uthread::is_unithread() {
        let mut state = STATE.get();
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        STATE.set(state);
        if state & 1 == 0 {
            farshore_uthread::yield_now();
        }
    }
}
