//! The bodies of HTTP messages: outgoing ones, and the bounded reading of incoming ones.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::ready;
use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt};
#[cfg(feature = "a2a-grpc")]
use http::HeaderName;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
#[cfg(feature = "a2a-grpc")]
use http_body_util::{BodyStream, StreamBody};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use orla_marketplace::{MemoryBudget, Reservation};

use crate::http::idle_timeout::ServingGuard;
use crate::options::ServerOptions;

/// An outgoing body: complete, or a stream.
pub(crate) enum Body {
    Whole(Bytes),
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
    /// With trailers.
    #[cfg(feature = "a2a-grpc")]
    Frames(Pin<Box<dyn HttpBody<Data = Bytes, Error = ()> + Send>>),
}

/// A body that marks its request as being answered while it is sent.
pub(crate) struct ServingBody {
    body: Body,
    _serving: ServingGuard,
}

impl Body {
    /// Attaches a value that is dropped when the body has been sent.
    pub(crate) fn until_end(self, serving: ServingGuard) -> ServingBody {
        ServingBody { body: self, _serving: serving }
    }

    /// Ends a streaming body when `end` completes, with `last` as its last event, or for gRPC with the
    /// status UNAUTHENTICATED.
    pub(crate) fn until(self, end: impl Future<Output = ()> + Send + 'static, last: Bytes) -> Self {
        match self {
            Self::Whole(bytes) => Self::Whole(bytes),
            Self::Stream(stream) => {
                let last = Some(last).filter(|last| !last.is_empty());
                Self::stream(until(stream, end).map(move |next| next.or(last.clone())).filter_map(ready))
            }
            // An error without a body has only headers as trailers, and nothing may follow them.
            #[cfg(feature = "a2a-grpc")]
            Self::Frames(body) if body.is_end_stream() => Self::Frames(body),
            #[cfg(feature = "a2a-grpc")]
            Self::Frames(body) => {
                let frames = until(BodyStream::new(body), end);
                let frames = frames.map(|frame| match frame {
                    Some(frame) => frame,
                    None => Ok(Frame::trailers(unauthenticated())),
                });
                Self::frames(StreamBody::new(frames))
            }
        }
    }

    pub(crate) fn empty() -> Self {
        Self::Whole(Bytes::new())
    }

    pub(crate) fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self::Stream(Box::pin(stream))
    }

    /// Returns a body of frames. If it breaks, it ends.
    #[cfg(feature = "a2a-grpc")]
    pub(crate) fn frames(body: impl HttpBody<Data = Bytes> + Send + 'static) -> Self {
        Self::Frames(Box::pin(body.map_err(drop)))
    }
}

/// Returns the items of a stream, and `None` as the last item if `end` completes first.
fn until<S: Stream + Unpin>(
    stream: S,
    end: impl Future<Output = ()>,
) -> impl Stream<Item = Option<S::Item>> {
    unfold(Some((stream, Box::pin(end))), |state| async {
        let (mut stream, mut end) = state?;
        tokio::select! {
            biased;
            () = &mut end => Some((None, None)),
            next = stream.next() => Some((Some(next?), Some((stream, end)))),
        }
    })
}

/// Returns the trailers of a gRPC call whose caller is no longer authenticated.
#[cfg(feature = "a2a-grpc")]
fn unauthenticated() -> HeaderMap {
    HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static("16"))])
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Stream(stream) => {
                stream.as_mut().poll_next(cx).map(|chunk| chunk.map(|it| Ok(Frame::data(it))))
            }
            #[cfg(feature = "a2a-grpc")]
            Self::Frames(body) => body.as_mut().poll_frame(cx).map(|frame| frame?.ok().map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Stream(_) => false,
            #[cfg(feature = "a2a-grpc")]
            Self::Frames(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(_) => SizeHint::default(),
            #[cfg(feature = "a2a-grpc")]
            Self::Frames(body) => body.size_hint(),
        }
    }
}

impl HttpBody for ServingBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads the body of a request within the limits of the server. A client that waits for `100 Continue`
/// has not sent a body that is too large, so there is nothing to discard.
///
/// # Errors
///
/// Returns 415 for an encoded body, and the errors of [`read`].
pub(crate) async fn of_request<B>(
    body: B,
    headers: &HeaderMap,
    memory: &Arc<MemoryBudget>,
    options: &ServerOptions,
) -> Result<Bytes, StatusCode>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    let is_plain = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(header::CONTENT_ENCODING).iter().all(is_plain) {
        return Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let discards = !headers.contains_key(header::EXPECT);
    read(body, memory, options.max_body_bytes, options.body_timeout, discards).await
}

/// Reads a body of at most `max` bytes within `time`. A body in one piece is not copied. A body whose
/// length is too large is read only if it `discards`. The bytes count towards the `memory` of all
/// requests as they arrive, until the last reference to them is dropped.
///
/// # Errors
///
/// Returns 413 for a body that is too large, 408 if it takes too long, 400 if it breaks off, and 503 if
/// the requests already hold the maximum memory.
pub(crate) async fn read<B>(
    body: B,
    memory: &Arc<MemoryBudget>,
    max: usize,
    time: Duration,
    discards: bool,
) -> Result<Bytes, StatusCode>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    let mut body = body;
    // The length was known before any byte was read.
    let mut read = Err(StatusCode::PAYLOAD_TOO_LARGE);
    let declared = body.size_hint().lower();
    if declared > max as u64 && !discards {
        return read;
    }
    if declared <= max as u64 {
        // The timer is armed only if the body has not arrived yet.
        read = tokio::select! {
            biased;
            read = collect(&mut body, memory, max) => read,
            () = tokio::time::sleep(time) => Err(StatusCode::REQUEST_TIMEOUT),
        };
    }
    if read == Err(StatusCode::PAYLOAD_TOO_LARGE) {
        // Most clients read an answer only after they have sent everything.
        discard(&mut body, OVERSIZED, DISCARD_TIME).await;
    }
    read
}

/// Reads and discards the body of a request that is answered without it, while the answer is sent. Without
/// this, hyper closes the connection without notice if the body has not arrived yet, and the client's next
/// request on it fails.
pub(crate) fn discard_refused<B>(
    body: B,
    headers: &HeaderMap,
    time: Duration,
    tasks: &TaskTracker,
    ending: CancellationToken,
) where
    B: HttpBody<Data = Bytes> + Unpin + Send + 'static,
{
    if body.is_end_stream() || headers.contains_key(header::EXPECT) {
        return;
    }
    tasks.spawn(async move {
        let mut body = body;
        ending.run_until_cancelled(discard(&mut body, REFUSED, time)).await;
    });
}

/// The maximum number of bytes of an oversized body that are read and discarded.
const OVERSIZED: usize = 64 * 1024 * 1024;
/// The maximum number of bytes of a body of an unknown caller that are read and discarded.
const REFUSED: usize = 256 * 1024;
/// The time limit for an oversized body.
const DISCARD_TIME: Duration = Duration::from_secs(2);

async fn discard<B: HttpBody<Data = Bytes> + Unpin>(body: &mut B, max: usize, time: Duration) {
    let read = async {
        let mut length = 0;
        while let Some(Ok(frame)) = body.frame().await {
            length += frame.data_ref().map_or(0, Bytes::len);
            if length > max {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(time, read).await;
}

/// Bytes that count towards the memory of all requests.
struct ReservedBytes {
    bytes: Bytes,
    _memory: Reservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

async fn collect<B>(body: &mut B, memory: &Arc<MemoryBudget>, max: usize) -> Result<Bytes, StatusCode>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut length = 0;
    let busy = |_| StatusCode::SERVICE_UNAVAILABLE;
    let mut memory = memory.reserve(0).map_err(busy)?;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| StatusCode::BAD_REQUEST)?.into_data() else { continue };
        length += data.len();
        if length > max {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        memory.resize(length).map_err(busy)?;
        if first.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            let expected = body.size_hint().upper().and_then(|left| usize::try_from(left).ok());
            rest.reserve(length + expected.unwrap_or_default().min(max));
            rest.extend_from_slice(&first);
        }
        rest.extend_from_slice(&data);
    }
    let bytes = if rest.is_empty() { first } else { rest.freeze() };
    Ok(if bytes.is_empty() {
        bytes
    } else {
        Bytes::from_owner(ReservedBytes { bytes, _memory: memory })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use http_body_util::StreamBody;

    fn pieces(pieces: &'static [&'static [u8]]) -> impl HttpBody<Data = Bytes> + Unpin {
        StreamBody::new(stream::iter(
            pieces.iter().map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::from_static(piece)))),
        ))
    }

    fn memory(max: usize) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget::new(max))
    }

    #[tokio::test]
    async fn a_body_is_read_within_its_bound() {
        let (second, memory) = (Duration::from_secs(1), memory(5));
        assert_eq!(
            read(pieces(&[b"ab", b"", b"cd", b"e"]), &memory, 5, second, true).await.unwrap(),
            "abcde"
        );
        assert_eq!(read(pieces(&[]), &memory, 5, second, true).await.unwrap(), "");
        assert_eq!(
            read(pieces(&[b"abc", b"def"]), &memory, 5, second, true).await,
            Err(StatusCode::PAYLOAD_TOO_LARGE)
        );
        let whole = Body::Whole(Bytes::from_static(b"abcdef"));
        assert_eq!(read(whole, &memory, 5, second, true).await, Err(StatusCode::PAYLOAD_TOO_LARGE));
    }

    #[tokio::test]
    async fn a_body_counts_to_the_memory_of_all_requests_until_its_last_reference_is_dropped() {
        let (second, memory) = (Duration::from_secs(1), memory(8));
        let body = read(pieces(&[b"ab", b"cde"]), &memory, 5, second, true).await.unwrap();
        let part = body.slice(1..2);
        drop(body);
        assert_eq!(memory.held(), 5);
        let busy = read(pieces(&[b"abcd"]), &memory, 5, second, true).await;
        assert_eq!(busy, Err(StatusCode::SERVICE_UNAVAILABLE));
        drop(part);
        assert_eq!(memory.held(), 0);
        assert!(read(pieces(&[b"abcd"]), &memory, 5, second, true).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_times_out() {
        let endless = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        assert_eq!(
            read(endless, &memory(5), 5, Duration::from_secs(30), true).await,
            Err(StatusCode::REQUEST_TIMEOUT)
        );
    }
}
