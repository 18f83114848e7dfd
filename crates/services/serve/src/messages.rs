//! Services whose messages have fixed sizes: a request of `ASKED` bytes, an answer of `TOLD`.
//!
//! Over UDP each is a datagram; over TCP they follow one another, and answers come in the order of requests. What is no request has no answer: as a
//! datagram it is counted and dropped, on a connection it ends it.

use std::io;

use farshore_uthread::net::Datagram;

use crate::service::{BUFFER, Stream};

/// Serves a connection to its end. `answer` makes the answer of a request, if it is one.
pub fn connection<const ASKED: usize, const TOLD: usize>(
    stream: &Stream,
    answer: impl Fn(&[u8; ASKED]) -> Option<[u8; TOLD]>,
) -> io::Result<()> {
    // As many at a time as there is room for, of the longer ones.
    let most = const { BUFFER / if ASKED > TOLD { ASKED } else { TOLD } };
    let (mut requests, mut answers) = ([0; BUFFER], [0; BUFFER]);
    let mut have = 0;
    loop {
        let read = stream.read(&mut requests[have..most * ASKED])?;
        if read == 0 {
            return Ok(());
        }
        have += read;
        let (whole, _) = requests[..have].as_chunks::<ASKED>();
        for (request, place) in whole.iter().zip(answers.as_chunks_mut::<TOLD>().0) {
            *place = answer(request).ok_or(io::ErrorKind::InvalidData)?;
        }
        let count = whole.len();
        stream.write_all(&answers[..count * TOLD])?;
        requests.copy_within(count * ASKED..have, 0);
        have -= count * ASKED;
    }
}

/// Serves a datagram.
pub fn datagram<const ASKED: usize, const TOLD: usize>(
    mut datagram: Datagram<'_>,
    answer: impl Fn(&[u8; ASKED]) -> Option<[u8; TOLD]>,
) {
    let Some(told) = datagram.bytes().try_into().ok().and_then(answer) else {
        return datagram.malformed();
    };
    datagram.buffer()[..TOLD].copy_from_slice(&told);
    datagram.reply(TOLD);
}
