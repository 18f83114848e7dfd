//! What the agent says: the binary form of Cloud Hypervisor's protocol (its pull request 8664), which `manager/src/wire.rs` reads.

/// Bytes of a header, and of an answer.
pub const HEADER: usize = 16;
/// The commands.
const HANDSHAKE: u16 = 0x0a;
const ADD_REGION: u16 = 0x0b;
const REMOVE_REGION: u16 = 0x0c;
const VERSION: u16 = 1;
/// Faults are the manager's to serve; it answers; files come along.
const FLAGS: u8 = 1 | 4 | 8;
/// Missing pages and write protection.
const MODES: u8 = 1 | 2;
/// Bytes of the smallest page.
const PAGE: u64 = 4096;
/// The status of an answer: done.
const DONE: u16 = 1;

fn message(command: u16, middle: [u8; 6], body: &[u64]) -> Vec<u8> {
    let length = size_of_val(body) as u64;
    let body = body.iter().flat_map(|number| number.to_le_bytes());
    command.to_le_bytes().into_iter().chain(middle).chain(length.to_le_bytes()).chain(body).collect()
}

/// Address, size, offset in the device (none), size of a fault, protection and flags (the manager looks for itself), offset in the file.
fn region(address: u64, bytes: u64, offset: u64) -> [u64; 6] {
    [address, bytes, 0, PAGE, 0, offset]
}

/// The first region is handed over.
pub fn hand_over(address: u64, bytes: u64, offset: u64) -> Vec<u8> {
    let [low, high] = VERSION.to_le_bytes();
    message(HANDSHAKE, [low, high, FLAGS, MODES, 1, 0], &region(address, bytes, offset))
}

/// One more.
pub fn add(address: u64, bytes: u64, offset: u64) -> Vec<u8> {
    message(ADD_REGION, [0; 6], &region(address, bytes, offset))
}

/// One goes.
pub fn remove(address: u64, bytes: u64) -> Vec<u8> {
    message(REMOVE_REGION, [0; 6], &[address, bytes])
}

/// Whether an answer says that it is done.
pub fn is_done(answer: [u8; HEADER]) -> bool {
    answer[..2] == DONE.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_protocol() {
        let handed = hand_over(0x1_0000, 0x2000, 0x3000);
        assert_eq!(handed[..16], [0x0a, 0, 1, 0, 13, 3, 1, 0, 48, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((handed.len(), handed[18], handed[25], handed[57]), (64, 1, 0x20, 0x30));
        assert_eq!(add(0x1_0000, 0x2000, 0x3000)[16..], handed[16..]);
        assert_eq!(remove(0x1_0000, 0x2000)[..16], [0x0c, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0]);
        let mut answer = [0; HEADER];
        assert!(!is_done(answer));
        answer[0] = 1;
        assert!(is_done(answer));
    }
}
