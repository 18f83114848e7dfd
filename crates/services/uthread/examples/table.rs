//! A service over a table that does not fit: `farshore run --memory 256M -- table 127.0.0.1:7007`. A request is a number, the answer is what stands there.
use farshore_uthread::net::{Datagram, Limits, UdpServer, UdpSocket};
use farshore_uthread::{Allocator, Config, Runtime};

#[global_allocator]
static HEAP: Allocator = Allocator;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:7007".into()).parse()?;
    // A gibibyte; what does not fit is on the disk.
    let table: Vec<u64> = (0..1u64 << 27).map(|number| number.wrapping_mul(number)).collect();
    let look_up = move |mut datagram: Datagram<'_>| {
        let Ok(number) = datagram.bytes().try_into().map(u64::from_le_bytes) else { return datagram.malformed() };
        // If the page is far the worker serves others until it is here.
        let Some(value) = table.get(number as usize).copied() else { return datagram.malformed() };
        datagram.buffer()[..8].copy_from_slice(&value.to_le_bytes());
        datagram.reply(8);
    };
    let runtime = Runtime::start(Config { workers: 1, ..Config::default() })?;
    let server = UdpServer::start(&runtime.handle(), UdpSocket::bind(address)?, Limits::default(), look_up)?;
    println!("look up numbers at {}; end with ^D", server.local_addr()?);
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    println!("{:?}", server.join());
    Ok(runtime.shutdown()?)
}
