//! A connection that can be cut.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Passes connections on to an address, until it is told not to.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    listener: TcpListener,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    cut: AtomicBool,
    silent: AtomicBool,
    ended: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Shared {
    fn hang_up(&self) {
        for stream in self.streams.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Proxy {
    /// Listens on loopback for connections to `target`.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn to(target: SocketAddr) -> io::Result<Self> {
        Self::from(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, target)
    }

    /// Passes what comes in here, which may be in another network namespace, on to `target` as this thread sees it.
    ///
    /// # Errors
    /// If the listener is none.
    pub fn from(listener: TcpListener, target: SocketAddr) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        let proxy = Self { address, listener: listener.try_clone()?, shared };
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if accepting.ended.load(Ordering::SeqCst) {
                    return;
                }
                if !accepting.cut.load(Ordering::SeqCst) {
                    let _ = accepting.join(stream, target);
                }
            }
        });
        Ok(proxy)
    }

    /// Where to connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends all connections, and every new one at once.
    pub fn cut(&self) {
        self.shared.cut.store(true, Ordering::SeqCst);
        self.shared.hang_up();
    }

    /// Ends all connections. New ones can be made.
    pub fn hang_up(&self) {
        self.shared.hang_up();
    }

    /// Passes nothing on any more, without a word, over new connections neither.
    pub fn silence(&self) {
        self.shared.silent.store(true, Ordering::SeqCst);
    }

    /// Ends [`Proxy::cut`] and [`Proxy::silence`]; what was held back arrives.
    pub fn heal(&self) {
        self.shared.silent.store(false, Ordering::SeqCst);
        self.shared.cut.store(false, Ordering::SeqCst);
    }
}

impl Shared {
    fn join(self: &Arc<Self>, near: TcpStream, target: SocketAddr) -> io::Result<()> {
        let far = TcpStream::connect(target)?;
        for (from, to) in [(near.try_clone()?, far.try_clone()?), (far.try_clone()?, near.try_clone()?)] {
            let shared = Arc::clone(self);
            thread::spawn(move || shared.pump(from, to));
        }
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).extend([near, far]);
        Ok(())
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 16 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            while self.silent.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(10));
            }
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.silent.store(false, Ordering::SeqCst);
        self.shared.hang_up();
        // Wakes the thread that accepts; it may be out of reach for a connection.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}
