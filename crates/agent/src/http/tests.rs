use super::*;

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
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
    assert!(TcpStream::connect(address).is_err());
}
