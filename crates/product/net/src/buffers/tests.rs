//! Pin sets, careful reads, and rules carried out on absent memory.

use super::fake::Fake;
use super::*;
use farshore_core::page::Page;
use proptest::prelude::*;
use std::collections::BTreeSet;

proptest! {
    #[test]
    fn a_pin_set_holds_what_was_pushed(pages in prop::collection::vec(0u64..160, 0..200)) {
        let (mut set, mut model) = (PinSet::new(), BTreeSet::new());
        for page in pages {
            prop_assert_eq!(set.contains(Page(page)), model.contains(&page));
            if !model.contains(&page) {
                if set.push_page(Page(page)) {
                    model.insert(page);
                } else {
                    prop_assert_eq!(set.runs().len(), PinSet::CAPACITY);
                }
            }
        }
        let listed: Vec<u64> = set.runs().iter().flat_map(|run| run.start.0..run.end.0).collect();
        prop_assert_eq!(listed.len(), model.len());
        prop_assert_eq!(set.pages(), model.len() as u64);
        prop_assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), model);
        set.clear();
        prop_assert!(set.is_empty() && set.pages() == 0);
    }
}

#[test]
fn neighbours_are_one_run() {
    let mut set = PinSet::new();
    for page in [5, 6, 7, 4, 3] {
        assert!(set.push_page(Page(page)));
    }
    assert_eq!(set.runs().len(), 1);
}

#[test]
fn a_wild_pointer_is_survived() {
    let _handler = Fake::new(1, 1 << 16);
    let mut value = 0u64;
    for wild in [8, 1 << 46, u64::MAX - 4096, 1 << 63] {
        // SAFETY: the destination is ours; the source may fault.
        assert!(!unsafe { careful::careful_copy((&raw mut value).cast(), wild, 8) }, "{wild:#x}");
        assert_eq!(careful::careful_strnlen(wild, 10), None);
        // SAFETY: as above, the other way round, with a long copy.
        assert!(!unsafe { careful::careful_copy(wild as *mut u8, (&raw const value) as u64, 4096) });
    }
}

#[test]
fn careful_copies_are_exact() {
    let fake = Fake::new(4, 1 << 16);
    let source: Vec<u8> = (0..3000u32).map(|n| (n * 7) as u8).collect();
    for len in [0, 1, 7, 8, 9, 56, 511, 512, 513, 2999] {
        let at = fake.base() + 4096 - len / 2;
        // SAFETY: the arena's memory, and ours.
        assert!(unsafe { careful::careful_copy(at as *mut u8, source.as_ptr() as u64, len as usize) });
        assert_eq!(fake.get(at, len), source[..len as usize]);
    }
    fake.put(fake.base(), b"string\0");
    assert_eq!(careful::careful_strnlen(fake.base(), 100), Some(6));
    assert_eq!(careful::careful_strnlen(fake.base(), 3), Some(3));
    assert_eq!(careful::careful_strnlen(1, 0), Some(0));
}

#[test]
fn a_string_may_cross_pages() {
    let fake = Fake::new(3, 1 << 16);
    let at = fake.base() + 4096 - 4;
    fake.put(at, b"/tmp/../tmp\0");
    assert_eq!(fake.call(libc::SYS_access, &[at, 0]), 0);
    // One that ends with the page does not need the next one.
    fake.forbid(2);
    let at = fake.base() + 8192 - 5;
    fake.put(at, b"/tmp\0");
    assert_eq!(fake.call(libc::SYS_access, &[at, 0]), 0);
    let at = fake.base() + 8192 - 4;
    fake.put(at, b"/tmp");
    assert_eq!(fake.call(libc::SYS_access, &[at, 0]), errno(libc::EFAULT));
}

#[test]
fn what_finds_no_room_goes_through_scratch_memory() {
    // 40 000 descriptors are 320 KB, five times the budget.
    let fake = Fake::new(100, 64 << 10);
    let count = 40_000u64;
    for index in 0..count {
        // Descriptor -1 is ignored; the last one is not there.
        let fd: i32 = if index == count - 1 { 999_999 } else { -1 };
        let entry = u64::from(fd.cast_unsigned()) | (libc::POLLIN as u64) << 32;
        fake.put_words(fake.base() + index * 8, &[entry]);
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is ours.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let result = fake.call(libc::SYS_poll, &[fake.base(), count, 0]);
    if limit.rlim_cur < count {
        assert_eq!(result, errno(libc::EINVAL));
    } else {
        assert_eq!(result, 1);
        let last = fake.get(fake.base() + (count - 1) * 8, 8);
        assert_eq!(last[6], libc::POLLNVAL as u8);
    }
}

#[test]
fn forbidden_memory_is_an_error_not_a_crash() {
    let fake = Fake::new(4, 64 << 10);
    fake.forbid(1);
    let at = fake.base() + 4096;
    assert_eq!(fake.call(libc::SYS_uname, &[at]), errno(libc::EFAULT));
    assert_eq!(fake.call(libc::SYS_uname, &[at - 8]), errno(libc::EFAULT));
    assert_eq!(fake.call(libc::SYS_uname, &[12345]), errno(libc::EFAULT));
    assert_eq!(fake.call(libc::SYS_uname, &[u64::MAX - 100]), errno(libc::EFAULT));
    assert_eq!(fake.call(libc::SYS_uname, &[0]), errno(libc::EFAULT));
    assert_eq!(fake.call(libc::SYS_uname, &[at + 4096]), 0);
}
