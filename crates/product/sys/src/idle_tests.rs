use super::*;
use core::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Where a page lies in the simulated kernel.
#[derive(Clone, Copy)]
struct At {
    frame: u64,
    exclusive: bool,
    of_file: bool,
}

/// A frame of its.
#[derive(Clone, Copy, Default)]
struct Frame {
    flags: u64,
    /// It takes the flag: it is on a list for reclaim.
    listed: bool,
    idle: bool,
    /// The page table's accessed bit, of its pages together.
    accessed: bool,
    /// So many times it is found locked.
    locked: u32,
    /// It is used all the time.
    hot: bool,
}

/// A kernel with idle page tracking, as far as it is asked.
#[derive(Default)]
struct Simulated {
    pages: RefCell<BTreeMap<u64, At>>,
    frames: RefCell<BTreeMap<u64, Frame>>,
    /// Frames are not told.
    hides: bool,
    marked: RefCell<BTreeSet<u64>>,
}

impl Simulated {
    /// A page in a frame of its own.
    fn map(&self, page: u64, frame: u64) {
        self.pages.borrow_mut().insert(page, At { frame, exclusive: true, of_file: false });
        self.frames.borrow_mut().insert(frame, Frame { listed: true, ..Frame::default() });
    }

    /// 512 pages in a huge page.
    fn map_huge(&self, page: u64, frame: u64) {
        for n in 0..512 {
            self.map(page + n, frame + n);
            let flags = if n == 0 { kpf::HEAD } else { kpf::TAIL };
            self.change(frame + n, |it| (it.flags, it.listed) = (flags, n == 0));
        }
    }

    fn change(&self, frame: u64, how: impl FnOnce(&mut Frame)) {
        how(self.frames.borrow_mut().entry(frame).or_default());
    }

    /// The flag of a huge page is that of its first frame.
    fn head(&self, frame: u64) -> u64 {
        let frames = self.frames.borrow();
        (0..=frame).rev().find(|at| frames[at].flags & kpf::TAIL == 0).unwrap()
    }

    /// The program uses a page.
    fn touch(&self, page: u64) {
        let frame = self.pages.borrow()[&page].frame;
        self.change(self.head(frame), |it| it.accessed = true);
    }
}

/// The kernel looks at the page tables: whether it could.
fn look(frame: &mut Frame) {
    if frame.locked > 0 {
        frame.locked -= 1;
    } else if core::mem::take(&mut frame.accessed) {
        frame.idle = false;
    }
}

impl Frames for Simulated {
    fn entries(&self, first: Page, into: &mut [Entry]) -> Result<(), Errno> {
        for (page, entry) in (first.0..).zip(into) {
            *entry = Entry(self.pages.borrow().get(&page).map_or(0, |at| {
                let frame = if self.hides { 0 } else { at.frame };
                1 << 63 | u64::from(at.of_file) << 61 | u64::from(at.exclusive) << 56 | frame
            }));
        }
        Ok(())
    }

    fn flags(&self, first: u64, into: &mut [u64]) -> Result<(), Errno> {
        for (frame, flags) in (first..).zip(into) {
            let it = self.frames.borrow().get(&frame).copied().unwrap_or_default();
            // As it is, without a look at page tables.
            *flags = it.flags | if it.idle { kpf::IDLE } else { 0 };
        }
        Ok(())
    }

    fn idle(&self, word: u64) -> Result<u64, Errno> {
        let mut bits = 0;
        for (frame, it) in self.frames.borrow_mut().range_mut(word * 64..(word + 1) * 64) {
            if it.listed && it.idle {
                look(it);
                bits |= u64::from(it.idle) << (frame % 64);
            }
        }
        Ok(bits)
    }

    fn mark(&self, word: u64, bits: u64) -> Result<(), Errno> {
        for (frame, it) in self.frames.borrow_mut().range_mut(word * 64..(word + 1) * 64) {
            if bits >> (frame % 64) & 1 != 0 {
                self.marked.borrow_mut().insert(*frame);
                if it.listed {
                    look(it);
                    (it.idle, it.accessed) = (true, it.hot);
                }
            }
        }
        Ok(())
    }
}

fn watched(pages: impl IntoIterator<Item = u64>) -> Vec<Watched> {
    pages.into_iter().map(|page| Watched { page: Page(page), mark: 0 }).collect()
}

fn uses(kernel: &Simulated, pages: &[Watched]) -> Vec<Use> {
    let mut uses = vec![Use::Used; pages.len()];
    noted(kernel, pages, &mut uses);
    uses
}

fn are_marked(pages: &[Watched]) -> Vec<bool> {
    pages.iter().map(|watched| watched.mark != 0).collect()
}

#[test]
fn used_and_unused_pages_are_told_apart() {
    let kernel = Simulated::default();
    // Frames here and there; two of them in one word, and a page far away.
    for (page, frame) in [(1000, 70_000), (1001, 3), (1003, 70_001), (1100, 9_999), (5000, 64)] {
        kernel.map(page, frame);
        kernel.touch(page);
    }
    let mut pages = watched([1000, 1001, 1002, 1003, 1100, 5000]);
    assert_eq!(mark(&kernel, &mut pages, false), Ok(()));
    assert_eq!(are_marked(&pages), [true, true, false, true, true, true], "one is not there");
    assert_eq!(*kernel.marked.borrow(), [3, 64, 9_999, 70_000, 70_001].into());
    [1001, 1003].into_iter().for_each(|page| kernel.touch(page));
    let expected = [Use::Unused, Use::Used, Use::Unknown, Use::Used, Use::Unused, Use::Unused];
    assert_eq!(uses(&kernel, &pages), expected);
    assert_eq!(uses(&kernel, &pages), expected, "who asks changes nothing");
}

#[test]
fn a_page_that_lies_elsewhere_is_not_told_of() {
    let kernel = Simulated::default();
    (0..4).for_each(|n| kernel.map(n, 100 + n));
    let mut pages = watched(0..4);
    assert_eq!(mark(&kernel, &mut pages, false), Ok(()));
    // One has left. One has moved, with its flag; its frame is another's, which is idle. One has left and come back to its frame.
    kernel.pages.borrow_mut().remove(&0);
    kernel.pages.borrow_mut().get_mut(&1).unwrap().frame = 500;
    kernel.change(500, |it| (it.listed, it.idle) = (true, true));
    kernel.map(2, 102);
    assert_eq!(uses(&kernel, &pages), [Use::Unknown, Use::Unknown, Use::Used, Use::Unused]);
}

#[test]
fn a_flag_that_is_not_taken_is_no_mark() {
    let kernel = Simulated::default();
    (0..3).for_each(|n| kernel.map(n, 100 + n));
    kernel.change(101, |it| it.listed = false);
    let mut pages = watched(0..3);
    assert_eq!(mark(&kernel, &mut pages, true), Ok(()));
    assert_eq!(are_marked(&pages), [true, false, true]);
    // It is on a list later, and idle for somebody else.
    kernel.change(101, |it| (it.listed, it.idle) = (true, true));
    assert_eq!(uses(&kernel, &pages), [Use::Unused, Use::Unknown, Use::Unused]);
    // A page that is used again before it is looked whether the flag was taken has taken it.
    kernel.change(101, |it| (it.listed, it.idle, it.hot) = (true, false, true));
    assert_eq!(mark(&kernel, &mut pages, true), Ok(()));
    assert_eq!(are_marked(&pages), [true; 3]);
    assert_eq!(uses(&kernel, &pages), [Use::Unused, Use::Used, Use::Unused]);
}

#[test]
fn what_others_have_too_is_left_out() {
    let kernel = Simulated::default();
    (0..4).for_each(|n| kernel.map(n, 100 + n));
    kernel.pages.borrow_mut().get_mut(&0).unwrap().exclusive = false;
    kernel.pages.borrow_mut().get_mut(&1).unwrap().of_file = true;
    kernel.change(102, |it| it.flags = 1 << 21);
    let mut pages = watched(0..4);
    assert_eq!(mark(&kernel, &mut pages, true), Ok(()));
    assert_eq!(are_marked(&pages), [false, false, false, true]);
    assert_eq!(*kernel.marked.borrow(), [103].into(), "nor are they touched");
}

#[test]
fn a_huge_page_is_used_as_a_whole() {
    let kernel = Simulated::default();
    kernel.map_huge(2048, 512 * 40);
    kernel.map(2600, 7);
    let mut pages = watched([2048, 2049, 2500, 2600]);
    assert_eq!(mark(&kernel, &mut pages, false), Ok(()));
    assert_eq!(are_marked(&pages), [false, false, false, true], "another scan may look at its other pages, and they were used");
    assert_eq!(mark(&kernel, &mut pages, true), Ok(()));
    assert_eq!(are_marked(&pages), [true; 4]);
    assert_eq!(*kernel.marked.borrow(), [7, 512 * 40].into());
    assert_eq!(uses(&kernel, &pages), [Use::Unused; 4]);
    kernel.touch(2051);
    assert_eq!(uses(&kernel, &pages), [Use::Used, Use::Used, Use::Used, Use::Unused], "by a page that was not asked of");
}

#[test]
fn who_is_not_alone_in_a_huge_page_joins() {
    let kernel = Simulated::default();
    kernel.map_huge(2048, 512 * 40);
    let (mut first, mut second, mut third) = (watched([2048, 2049]), watched([2050, 2051]), watched([2052]));
    assert_eq!(mark(&kernel, &mut first, true), Ok(()));
    assert_eq!(mark(&kernel, &mut second, false), Ok(()));
    assert_eq!(are_marked(&second), [true, true]);
    assert_eq!([uses(&kernel, &first), uses(&kernel, &second)], [[Use::Unused; 2]; 2]);
    kernel.touch(2300);
    // Whoever comes now hears of that too, and takes it from nobody.
    assert_eq!(mark(&kernel, &mut third, false), Ok(()));
    assert_eq!((are_marked(&third), uses(&kernel, &third)), (vec![true], vec![Use::Used]));
    assert_eq!([uses(&kernel, &first), uses(&kernel, &second)], [[Use::Used; 2]; 2]);
    // The kernel has said it, and the flag is gone: it is not marked for others as long as the first may ask.
    assert_eq!(mark(&kernel, &mut third, false), Ok(()));
    assert_eq!(are_marked(&third), [false]);
    assert_eq!(mark(&kernel, &mut third, true), Ok(()));
    assert_eq!(uses(&kernel, &third), [Use::Unused]);
}

#[test]
fn a_huge_page_that_was_split_is_not_told_of() {
    let kernel = Simulated::default();
    kernel.map_huge(2048, 512 * 40);
    let mut pages = watched([2048, 2050, 2100]);
    assert_eq!(mark(&kernel, &mut pages, true), Ok(()));
    // Its parts are used apart from now on, and the first is not.
    (0..512).for_each(|n| kernel.change(512 * 40 + n, |it| (it.flags, it.listed) = (0, true)));
    [2050, 2100].into_iter().for_each(|page| kernel.touch(page));
    assert_eq!(uses(&kernel, &pages), [Use::Unused, Use::Unknown, Use::Unknown]);
}

#[test]
fn a_huge_page_that_was_split_into_smaller_ones_is_told_of_as_far_as_it_is_the_same() {
    let kernel = Simulated::default();
    kernel.map_huge(2048, 512 * 40);
    let mut pages = watched([2048, 2050, 2100]);
    assert_eq!(mark(&kernel, &mut pages, true), Ok(()));
    (0..512).for_each(|n| {
        kernel.change(512 * 40 + n, |it| (it.flags, it.listed) = (if n % 8 == 0 { kpf::HEAD } else { kpf::TAIL }, n % 8 == 0));
    });
    [2050, 2100].into_iter().for_each(|page| kernel.touch(page));
    assert_eq!(uses(&kernel, &pages), [Use::Used, Use::Used, Use::Unknown]);
}

#[test]
fn a_huge_page_out_of_step_is_left_out() {
    let kernel = Simulated::default();
    kernel.map_huge(2049, 512 * 40);
    let mut pages = watched([2049, 2060]);
    assert_eq!(mark(&kernel, &mut pages, true), Ok(()));
    assert_eq!(are_marked(&pages), [false, false], "a part of it lies in another granule");
}

#[test]
fn a_page_that_the_kernel_has_locked_is_asked_again() {
    let kernel = Simulated::default();
    (0..2).for_each(|n| kernel.map(n, 100 + n));
    let mut pages = watched(0..2);
    assert_eq!(mark(&kernel, &mut pages, true), Ok(()));
    kernel.touch(0);
    kernel.change(100, |it| it.locked = 1);
    kernel.change(101, |it| it.locked = 1);
    assert_eq!(uses(&kernel, &pages), [Use::Used, Use::Unused]);
}

#[test]
fn hidden_frames_are_a_lack() {
    let kernel = Simulated { hides: true, ..Simulated::default() };
    kernel.map(5, 100);
    let mut pages = watched([4, 5]);
    assert_eq!(mark(&kernel, &mut pages, true), Err(Lack::Frames));
    assert!(kernel.marked.borrow().is_empty());
}

#[test]
fn lacks_say_what_is_missing() {
    let says = |lack: Lack| lack.to_string();
    assert_eq!(says(Lack::File(BITMAP, Errno::ENOENT)), "no /sys/kernel/mm/page_idle: CONFIG_IDLE_PAGE_TRACKING");
    assert_eq!(says(Lack::File(BITMAP, Errno::EACCES)), "/sys/kernel/mm/page_idle/bitmap: access denied (EACCES)");
    assert!(says(Lack::Frames).contains("CAP_SYS_ADMIN"));
    assert_eq!(open(c"/dev/zero", fd::O_RDONLY, SYSFS).map(drop), Err(Lack::File(c"/dev/zero", Errno::ENODEV)));
    assert!(open(PAGEMAP, fd::O_RDONLY, PROC).is_ok());
}

#[test]
fn the_tlb_is_flushed_by_pages_far_apart() {
    let tracking = Tracking::new();
    have_scratch().unwrap();
    assert!(tracking.settle());
    let at = SCRATCH_AT.load(Ordering::Relaxed);
    assert!(have_scratch().is_ok() && SCRATCH_AT.load(Ordering::Relaxed) == at, "once");
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let holds = |line: &&str| {
        let edges = line.split(' ').next().and_then(|range| range.split_once('-'));
        edges.is_some_and(|(start, end)| {
            let [start, end] = [start, end].map(|edge| u64::from_str_radix(edge, 16).unwrap_or(0));
            (start..end).contains(&at)
        })
    };
    let mapping = smaps.lines().skip_while(|line| !holds(line)).find(|line| line.starts_with("VmFlags")).unwrap();
    assert!(mapping.contains(" nh"), "no huge page comes there: {mapping}");
}

#[test]
fn who_gives_up_watches_no_more() {
    let tracking = Tracking::new();
    tracking.give_up();
    let mut pages = watched([1]);
    assert_eq!((tracking.mark(&mut pages, true), pages[0].mark), (Err(Lack::GivenUp), 0));
    let mut uses = [Use::Used];
    tracking.noted(&pages, &mut uses);
    assert_eq!(uses, [Use::Unknown]);
}
