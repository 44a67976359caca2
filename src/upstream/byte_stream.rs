//! Byte streams that are one of several, such as plain text or TLS. Must not know which.

/// Implements [`AsyncRead`](tokio::io::AsyncRead) and [`AsyncWrite`](tokio::io::AsyncWrite) for a type by the stream in one of
/// these variants of `$value`, which is reached from `$this`, a reference to the type.
macro_rules! byte_stream_by_variant {
    ($stream:ty, $this:ident => $value:expr, $($variant:path),+) => {
        impl tokio::io::AsyncRead for $stream {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let $this = self.get_mut();
                match $value {
                    $($variant(ref mut io) => {
                        tokio::io::AsyncRead::poll_read(std::pin::Pin::new(io), cx, buffer)
                    })+
                }
            }
        }

        impl tokio::io::AsyncWrite for $stream {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                bytes: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let $this = self.get_mut();
                match $value {
                    $($variant(ref mut io) => {
                        tokio::io::AsyncWrite::poll_write(std::pin::Pin::new(io), cx, bytes)
                    })+
                }
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                slices: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let $this = self.get_mut();
                match $value {
                    $($variant(ref mut io) => tokio::io::AsyncWrite::poll_write_vectored(
                        std::pin::Pin::new(io),
                        cx,
                        slices,
                    ),)+
                }
            }

            fn is_write_vectored(&self) -> bool {
                let $this = self;
                match $value {
                    $($variant(ref io) => tokio::io::AsyncWrite::is_write_vectored(io),)+
                }
            }

            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let $this = self.get_mut();
                match $value {
                    $($variant(ref mut io) => {
                        tokio::io::AsyncWrite::poll_flush(std::pin::Pin::new(io), cx)
                    })+
                }
            }

            fn poll_shutdown(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let $this = self.get_mut();
                match $value {
                    $($variant(ref mut io) => {
                        tokio::io::AsyncWrite::poll_shutdown(std::pin::Pin::new(io), cx)
                    })+
                }
            }
        }
    };
}

pub(crate) use byte_stream_by_variant;
