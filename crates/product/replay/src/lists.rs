//! Pages in lists: each page is on one of a few lists, or on none.

const NONE: u32 = u32::MAX;

/// Lists of pages. What is put at the front of one comes off its back last.
#[derive(Clone, Debug)]
pub struct Lists {
    /// The neighbours of each page (towards the front, towards the back), and the list that it is on.
    links: Vec<(u32, u32, u8)>,
    /// Front, back and length of each list.
    ends: Vec<(u32, u32, usize)>,
}

impl Lists {
    /// So many lists, all empty, of pages below `pages`.
    pub fn new(pages: u32, lists: usize) -> Lists {
        Lists { links: vec![(NONE, NONE, u8::MAX); pages as usize], ends: vec![(NONE, NONE, 0); lists] }
    }

    /// The list that a page is on.
    pub fn of(&self, page: u32) -> Option<usize> {
        Some(usize::from(self.links[page as usize].2)).filter(|&list| list < self.ends.len())
    }

    /// Pages of a list.
    pub fn len(&self, list: usize) -> usize {
        self.ends[list].2
    }

    /// Whether a list has no page.
    pub fn is_empty(&self, list: usize) -> bool {
        self.len(list) == 0
    }

    /// The page at the back.
    pub fn back(&self, list: usize) -> Option<u32> {
        Some(self.ends[list].1).filter(|&page| page != NONE)
    }

    /// The page that comes after this one on the way to the front.
    pub fn towards_front(&self, page: u32) -> Option<u32> {
        Some(self.links[page as usize].0).filter(|&page| page != NONE)
    }

    /// Puts a page, which may be on another list, at the front of this one.
    pub fn put(&mut self, list: usize, page: u32) {
        self.take(page);
        let front = self.ends[list].0;
        self.links[page as usize] = (NONE, front, list as u8);
        match front {
            NONE => self.ends[list].1 = page,
            front => self.links[front as usize].0 = page,
        }
        self.ends[list].0 = page;
        self.ends[list].2 += 1;
    }

    /// Takes a page off its list.
    pub fn take(&mut self, page: u32) {
        let Some(list) = self.of(page) else { return };
        let (before, after, _) = std::mem::replace(&mut self.links[page as usize], (NONE, NONE, u8::MAX));
        match before {
            NONE => self.ends[list].0 = after,
            before => self.links[before as usize].1 = after,
        }
        match after {
            NONE => self.ends[list].1 = before,
            after => self.links[after as usize].0 = before,
        }
        self.ends[list].2 -= 1;
    }

    /// Takes the page at the back.
    pub fn pop(&mut self, list: usize) -> Option<u32> {
        let page = self.back(list)?;
        self.take(page);
        Some(page)
    }
}
