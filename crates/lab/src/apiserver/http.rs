//! The part of HTTP/1.1 that the API needs.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};

use serde_json::{Value, json};

use super::store::Refusal;

const MAX_HEAD: u64 = 64 << 10;
const MAX_BODY: u64 = 4 << 20;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: Vec<String>,
    pub(super) query: HashMap<String, String>,
    pub(super) token: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// Reads a request; `None` if the client has closed the connection.
    pub(super) fn read(stream: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut head = stream.take(MAX_HEAD);
        let mut line = String::new();
        if head.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_ascii_whitespace();
        let (Some(method), Some(target)) = (words.next(), words.next()) else { return Err(invalid("request line")) };
        let (method, target) = (method.to_owned(), target.to_owned());
        let (mut length, mut token) = (0, None);
        loop {
            let mut line = String::new();
            if head.read_line(&mut line)? == 0 {
                return Err(invalid("header"));
            }
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().map_err(|_| invalid("length"))?,
                "authorization" => token = value.trim().strip_prefix("Bearer ").map(str::to_owned),
                _ => {}
            }
        }
        if length > MAX_BODY {
            return Err(invalid("length"));
        }
        let mut body = Vec::new();
        stream.take(length).read_to_end(&mut body)?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let path = path.split('/').filter(|part| !part.is_empty()).map(unescaped).collect();
        let query = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (unescaped(name), unescaped(&value.replace('+', " "))))
            .collect();
        Ok(Some(Self { method, path, query, token, body }))
    }

    pub(super) fn query(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }
}

fn invalid(subject: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("invalid {subject}"))
}

fn unescaped(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Writes an answer with a body.
pub(super) fn answer(stream: &mut impl Write, code: u16, body: &[u8], extra: &str) -> io::Result<()> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{extra}\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    stream.flush()
}

pub(super) fn refusal(stream: &mut impl Write, refusal: &Refusal, retry_after: Option<u64>) -> io::Result<()> {
    let extra = retry_after.map(|seconds| format!("Retry-After: {seconds}\r\n")).unwrap_or_default();
    answer(stream, refusal.code, status(refusal).to_string().as_bytes(), &extra)
}

/// `Status` of `meta/v1`.
pub(super) fn status(refusal: &Refusal) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": refusal.message,
        "reason": refusal.reason,
        "code": refusal.code,
    })
}

/// Begins an answer of unknown length.
pub(super) fn begin_chunks(stream: &mut impl Write) -> io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    stream.flush()
}

pub(super) fn chunk(stream: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    write!(stream, "{:x}\r\n", bytes.len())?;
    stream.write_all(bytes)?;
    stream.write_all(b"\r\n")?;
    stream.flush()
}

pub(super) fn end_chunks(stream: &mut impl Write) -> io::Result<()> {
    stream.write_all(b"0\r\n\r\n")?;
    stream.flush()
}
