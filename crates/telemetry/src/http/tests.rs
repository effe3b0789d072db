use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn text_moves_no_cursor() {
    assert_eq!(Response::text(200, "not ready: \u{1b}[2J\u{202e}\n").body, "not ready: \\u001b[2J\\u202e\n");
}

#[test]
fn paths_are_answered_and_nonsense_is_refused() {
    let server = serve("127.0.0.1:0", "test", |path| match path {
        "/liveness" => Response::text(200, "well\n"),
        _ => Response::text(404, "no such page\n"),
    })
    .unwrap();
    let address = server.address();
    let answer = ask(address, "GET /liveness?verbose HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nwell\n"), "{answer}");
    assert!(ask(address, "GET /x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask(address, "POST /liveness HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(ask(address, "\r\n\r\n").starts_with("HTTP/1.1 400"));
    assert!(ask(address, "HEAD /liveness HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
}

#[test]
fn a_dropped_server_frees_its_address_even_while_it_answers() {
    let (answering, begun) = std::sync::mpsc::channel();
    let (finish, finished) = std::sync::mpsc::channel::<()>();
    let slow = serve("127.0.0.1:0", "slow", move |_| {
        answering.send(()).unwrap();
        let _ = finished.recv();
        Response::text(200, "at last\n")
    })
    .unwrap();
    let address = slow.address();
    let client = thread::spawn(move || ask(address, "GET / HTTP/1.1\r\n\r\n"));
    begun.recv().unwrap();
    drop(slow);
    let next = serve(address, "next", |_| Response::text(200, "next\n")).unwrap();
    assert!(ask(next.address(), "GET / HTTP/1.1\r\n\r\n").ends_with("next\n"));
    finish.send(()).unwrap();
    assert!(client.join().unwrap().ends_with("at last\n"));
    drop(next);
    // A process that another test is starting still has the socket for a moment.
    let deadline = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(10));
    }
}

/// Time that a client may have to wait on a busy machine; less than the limit of any other client.
const QUICK: Duration = Duration::from_millis(1500);

/// The answer, and how long it took.
fn timed(address: SocketAddr) -> (String, Duration) {
    let begin = Instant::now();
    let answer = ask(address, "GET /liveness HTTP/1.1\r\n\r\n");
    (answer, begin.elapsed())
}

fn well(limits: Limits) -> Server {
    serve_with(Options { limits, tls: None }, "127.0.0.1:0", "test", |_| Response::text(200, "well\n")).unwrap()
}

fn assert_quick(address: SocketAddr) {
    let (answer, took) = timed(address);
    assert!(answer.ends_with("well\n") && took < QUICK, "{took:?}: {answer}");
}

#[test]
fn slow_and_idle_clients_delay_no_other_and_are_cut_off() {
    let time = QUICK * 2;
    let server = well(Limits { time, ..Limits::default() });
    let address = server.address();
    let idle: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut slow = TcpStream::connect(address).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < time / 3 {
        slow.write_all(b"G").unwrap();
        assert_quick(address);
        thread::sleep(Duration::from_millis(20));
    }
    // A byte now and then does not buy more time.
    for mut stream in idle.into_iter().chain([slow]) {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let cut_off = stream.read(&mut [0; 16]);
        assert!(cut_off.as_ref().map_or(true, |read| *read == 0), "{cut_off:?}");
    }
    assert!(begin.elapsed() < time * 2, "{:?}", begin.elapsed());
}

#[test]
fn of_too_many_clients_the_oldest_are_cut_off() {
    let server = well(Limits { connections: 8, time: Duration::from_secs(60) });
    let address = server.address();
    let mut idle: Vec<TcpStream> = Vec::new();
    for _ in 0..50 {
        idle.push(TcpStream::connect(address).unwrap());
        if idle.len().is_multiple_of(10) {
            assert_quick(address);
        }
    }
    let mut oldest = idle.remove(0);
    assert_eq!(oldest.read(&mut [0; 16]).unwrap_or(0), 0);
    let mut youngest = idle.pop().unwrap();
    youngest.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    youngest.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("well\n"), "{answer}");
}

/// Answers take 50 ms, in which more clients than 128 connect, and scrapers send their requests
/// some time after they have connected, as over a network.
#[test]
fn scrapes_are_answered_within_a_flood_of_idle_connections() {
    let server = serve("127.0.0.1:0", "test", |_| {
        thread::sleep(Duration::from_millis(50));
        Response::text(200, "well\n")
    })
    .unwrap();
    let address = server.address();
    let stop = Arc::new(AtomicBool::new(false));
    let flood = thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut idle: VecDeque<TcpStream> = VecDeque::new();
            let (begin, mut count) = (Instant::now(), 0_u32);
            while !stop.load(Ordering::Acquire) {
                // 4,000 a second; those that the full queue of the kernel would block are not
                // waited for.
                for _ in 0..20 {
                    let socket = rustix::net::socket_with(
                        rustix::net::AddressFamily::INET,
                        rustix::net::SocketType::STREAM,
                        rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC,
                        None,
                    )
                    .unwrap();
                    let _ = rustix::net::connect(&socket, &address);
                    idle.push_back(socket.into());
                    count += 1;
                }
                if idle.len() > 600 {
                    idle.drain(..100);
                }
                let due = begin + Duration::from_micros(250) * count;
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            (count, begin.elapsed())
        }
    });
    thread::sleep(Duration::from_millis(200));
    let mut slowest = Duration::ZERO;
    for _ in 0..30 {
        let begin = Instant::now();
        let mut stream = TcpStream::connect(address).unwrap();
        thread::sleep(Duration::from_millis(5));
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        slowest = slowest.max(begin.elapsed());
        assert!(answer.ends_with("well\n"), "{read:?} after {:?}", begin.elapsed());
    }
    stop.store(true, Ordering::Release);
    let (count, time) = flood.join().unwrap();
    assert!(count > 1000, "{count} connections in {time:?} are no flood");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}; {count} idle connections in {time:?}");
}

#[test]
fn a_client_that_does_not_read_its_answer_delays_no_other() {
    let server = serve_with(
        Options { limits: Limits { time: QUICK * 2, ..Limits::default() }, tls: None },
        "127.0.0.1:0",
        "test",
        |path| match path {
            "/big" => Response { status: 200, content_type: "text/plain", body: "x".repeat(32 << 20) },
            _ => Response::text(200, "well\n"),
        },
    )
    .unwrap();
    let address = server.address();
    let mut lazy = TcpStream::connect(address).unwrap();
    lazy.write_all(b"GET /big HTTP/1.1\r\n\r\n").unwrap();
    thread::sleep(Duration::from_millis(100));
    assert_quick(address);
    thread::sleep(QUICK * 2);
    let mut got = Vec::new();
    let _ = lazy.read_to_end(&mut got);
    assert!(!got.is_empty() && got.len() < 32 << 20, "{} bytes of an answer that no client took", got.len());
}

#[test]
fn a_client_that_floods_is_refused_and_delays_no_other() {
    let server = well(Limits { time: QUICK * 2, ..Limits::default() });
    let address = server.address();
    let flood = thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut sent = 0_usize;
        while let Ok(more) = stream.write(&[b'x'; 4096]) {
            sent += more;
        }
        sent
    });
    for _ in 0..20 {
        assert_quick(address);
        thread::sleep(Duration::from_millis(10));
    }
    assert!(flood.join().unwrap() > 0);
    let long = format!("GET / HTTP/1.1\r\nCookie: {}", "x".repeat(20_000));
    assert!(ask(address, &long).starts_with("HTTP/1.1 431 "));
    // Bytes after a request do not destroy the answer.
    let post = format!("POST / HTTP/1.1\r\n\r\n{}", "x".repeat(200_000));
    assert!(ask(address, &post).ends_with("only GET\n"));
}

#[test]
fn a_half_closed_client_is_answered_and_a_silent_one_is_not() {
    let server = well(Limits::default());
    let closed = |request: &str| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(closed("GET / HTTP/1.1\r\n\r\n").ends_with("well\n"));
    assert!(closed("GET / HTTP/1.0\r\n").ends_with("well\n"));
    assert_eq!(closed(""), "");
    assert_quick(server.address());
}
