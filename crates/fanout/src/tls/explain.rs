//! Errors of a handshake, by the expectation that was not met.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, OtherError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::TlsFiles;

/// Names the expectation that was not met; other errors stay unchanged.
pub(super) fn explain(error: io::Error, files: &TlsFiles) -> io::Error {
    use AlertDescription as Alert;
    let Some(cause) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else { return error };
    let text = match cause {
        Error::InvalidCertificate(CertificateError::Other(OtherError(reason))) => reason.to_string(),
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            let authority = files.authority.display();
            format!("the certificate of the other side does not come from an authority in {authority}")
        }
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => "the other side does not speak TLS".into(),
        Error::NoCertificatesPresented => "the other side presents no certificate".into(),
        Error::AlertReceived(
            alert @ (Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied),
        ) => format!("the other side rejects the certificate in {}: {alert:?}", files.certificate.display()),
        _ => return error,
    };
    io::Error::new(error.kind(), text)
}

/// Connection of a client. In TLS 1.3, the server's judgement of the client arrives with the first
/// data.
pub(super) struct ClientStream<S> {
    stream: S,
    /// Files of a connection with TLS.
    files: Option<TlsFiles>,
    has_read: bool,
}

impl<S> ClientStream<S> {
    pub(super) fn new(stream: S, files: Option<TlsFiles>) -> Self {
        Self { stream, files, has_read: false }
    }
}

/// Reports whether these are the first bytes of an alert of TLS (RFC 8446, section 5.1).
fn is_alert(bytes: &[u8]) -> bool {
    matches!(bytes, [21, 3, 0..=4, ..])
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        let is_first = !std::mem::replace(&mut self.has_read, true);
        Poll::Ready(match (&self.files, result) {
            (Some(files), Err(error)) => Err(explain(error, files)),
            (None, Ok(())) if is_first && buffer.filled().get(before..).is_some_and(is_alert) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the server expects TLS, and no certificates are configured",
            )),
            (_, result) => result,
        })
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
