//! A host over memory of this process: what is thrown away, and what only looks so; and that everything comes back.

mod common;

use std::os::fd::AsFd as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{PAGE, backing, mapping, memfd, open, region};
use farshore_config::{Options, Size};
use farshore_core::page::{Page, PageRange};
use farshore_core::word::State;
use farshore_manager::chosen::Choice;
use farshore_manager::host::{Host, Swap};
use farshore_manager::leave::leave;
use farshore_manager::process::userfaultfd;
use farshore_manager::serve;
use farshore_sys::uffd::{Features, UffdOptions};
use rustix::fs::{FallocateFlags, fallocate, fstat};

const PAGES: u64 = 3000;

fn byte_of(range: PageRange, page: Page) -> u8 {
    (page.0 - range.start.0) as u8 | 1
}

fn place(page: Page) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(page.addr() as usize)
}

/// A thread of the client reads the first byte of a page.
fn read(page: Page) -> u8 {
    // SAFETY: shared memory of the test, which stays mapped; whoever faults there is served.
    unsafe { place(page).read_volatile() }
}

/// And writes it.
fn write(page: Page, byte: u8) {
    // SAFETY: as in `read`; the test has one thread.
    unsafe { place(page).write_volatile(byte) };
}

/// Waits for what must come.
fn wait_until(what: impl Fn() -> bool, otherwise: &str) {
    let until = Instant::now() + Duration::from_secs(60);
    while !what() {
        assert!(Instant::now() < until, "{otherwise}");
        sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_out_stays_and_what_is_thrown_away_goes() {
    let Some(uffd) = open(UffdOptions::POLL) else { return };
    let uffd = userfaultfd(uffd.fd().as_fd().try_clone_to_owned().expect("there is a number"), Features::default())
        .expect("it sends messages");
    let fd = memfd(PAGES);
    let range = mapping(&fd, PAGES, 0);
    // It was in use before.
    (0..100).map(|n| range.start.plus(n)).for_each(|page| write(page, byte_of(range, page)));
    let options = Options::new(Size::mib(4), "ram".parse().expect("it is a swap space"));
    let choice = Choice::new(&options, std::process::id().cast_signed(), None).expect("there is no budget");
    let host = Host::make(&options, choice, uffd, Swap::New).expect("there is memory");
    host.begin(&options).expect("there are threads");
    host.take(vec![region(&backing(&fd), range, 0)], |_| Ok(())).expect("it is shared memory");
    serve::start(host).expect("there are threads");
    let is = |page: Page, state: State| host.state_of(page) == Some(state);
    assert!(is(range.start.plus(PAGES - 1), State::Untouched) && !is(range.start, State::Untouched));
    range.iter().skip(100).for_each(|page| write(page, byte_of(range, page)));
    let in_memory = || fstat(&fd).expect("it is open").st_blocks as u64 * 512;
    wait_until(|| range.iter().filter(|page| is(*page, State::Out)).count() > 100, "no page leaves");
    assert!(in_memory() <= 4 << 20);

    // Holes that are pages which are out, and will come back.
    range.iter().for_each(|page| host.forget_thrown_away(page));
    assert!(!range.iter().any(|page| is(page, State::Untouched)), "a page that is out was forgotten");
    // A hole that the client has made.
    let thrown = range.iter().find(|page| is(*page, State::Resident)).expect("some are in memory");
    let offset = (thrown.0 - range.start.0) * PAGE;
    fallocate(&fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, PAGE).expect("it is its own");
    wait_until(
        || {
            // An evictor may have taken it out before.
            host.forget_thrown_away(thrown);
            !is(thrown, State::Resident)
        },
        "a page that was thrown away is not forgotten",
    );
    let was_forgotten = is(thrown, State::Untouched);
    let right = |page: Page| if page == thrown && was_forgotten { 0 } else { byte_of(range, page) };
    range.iter().for_each(|page| assert_eq!(read(page), right(page), "{page:?}"));
    assert!(in_memory() <= 4 << 20);

    // It leaves, and all is ordinary memory again.
    let mode = || fstat(&fd).expect("it is open").st_mode & 0o7777;
    assert_eq!(mode() & 0o1000, 0o1000, "pages are out, and no mark says so");
    let back = leave(host).expect("there is room");
    assert!(back >= PAGES * PAGE - (4 << 20) && in_memory() >= (PAGES - 1) * PAGE, "{back} bytes came back");
    assert_eq!(mode() & 0o1000, 0);
    range.iter().for_each(|page| assert_eq!(read(page), right(page), "{page:?}"));
    range.iter().for_each(|page| write(page, 2));
}
