//! Sends back what comes: lines by TCP, and datagrams.
//!
//!     cargo run --release -p farshore-uthread --example echo -- 127.0.0.1:7007
//!
//! Ends with its input (^D), and prints what was counted. `nc 127.0.0.1 7007` and `nc -u 127.0.0.1 7007` are peers.

#[cfg(not(loom))]
mod echo {
    use farshore_uthread::net::{Connection, Datagram, Frame, Limits, Next, TcpListener, TcpServer, UdpServer, UdpSocket};
    use farshore_uthread::{Config, Runtime};
    use std::io;
    use std::net::SocketAddr;

    /// A request is a line.
    fn line(bytes: &[u8]) -> Frame {
        match bytes.iter().position(|&byte| byte == b'\n') {
            Some(at) => Frame::Whole(at + 1),
            None => Frame::More,
        }
    }

    fn lines(connection: &mut Connection<'_>) -> io::Result<()> {
        loop {
            match connection.receive(line)? {
                Next::Request => connection.send(connection.request())?,
                Next::Overload => connection.send(b"busy\n")?,
                Next::End => return Ok(()),
            }
        }
    }

    fn datagram(datagram: Datagram<'_>) {
        // It lies where the reply is made, so there is nothing to do.
        let length = datagram.bytes().len();
        datagram.reply(length);
    }

    pub fn run() -> Result<(), Box<dyn std::error::Error>> {
        let address: SocketAddr = std::env::args().nth(1).unwrap_or("127.0.0.1:7007".into()).parse()?;
        let runtime = Runtime::start(Config::default())?;
        let handle = runtime.handle();
        let tcp = TcpServer::start(&handle, TcpListener::bind(address, 1024)?, Limits::default(), lines)?;
        // The same port, if the kernel was to choose one.
        let udp = UdpServer::start(&handle, UdpSocket::bind(tcp.local_addr())?, Limits::default(), datagram)?;
        println!("TCP and UDP at {}", tcp.local_addr());
        io::copy(&mut io::stdin(), &mut io::sink())?;
        println!("TCP: {:?}\nUDP: {:?}", tcp.join(), udp.join());
        runtime.shutdown()?;
        Ok(())
    }
}

#[cfg(not(loom))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    echo::run()
}

#[cfg(loom)]
fn main() {}
