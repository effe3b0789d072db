//! A TCP proxy that can interrupt connections.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Forwards connections to an address until it is cut or silenced.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    listener: TcpListener,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    cut: AtomicBool,
    holds_data: AtomicBool,
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
    /// If no port can be bound.
    pub fn to(target: SocketAddr) -> io::Result<Self> {
        Self::from(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, target)
    }

    /// Forwards connections to `listener`, which may be in another network namespace, to `target`
    /// in the namespace of this thread.
    ///
    /// # Errors
    /// If the listener has no address.
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

    /// Returns the listening address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and every new one immediately.
    pub fn cut(&self) {
        self.shared.cut.store(true, Ordering::SeqCst);
        self.shared.hang_up();
    }

    /// Closes all connections and accepts new ones.
    pub fn hang_up(&self) {
        self.shared.hang_up();
    }

    /// Holds back all data of old and new connections without closing them.
    pub fn hold_data(&self) {
        self.shared.holds_data.store(true, Ordering::SeqCst);
    }

    /// Ends [`Proxy::cut`] and [`Proxy::hold_data`]; data that was held back is sent.
    pub fn heal(&self) {
        self.shared.holds_data.store(false, Ordering::SeqCst);
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
            while self.holds_data.load(Ordering::SeqCst) {
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
        self.shared.holds_data.store(false, Ordering::SeqCst);
        self.shared.hang_up();
        // Unblocks the accepting thread, whose listener may be in an unreachable namespace.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}
