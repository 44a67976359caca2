//! The limits of QUIC connections, from those that the process and policies set for connections.

use std::time::Duration;

use super::http3_send_window::SEND_WINDOW;
use crate::http2::AMPLE_WINDOW;
use crate::quic;
use crate::settings::Limits;

/// Window of streams, unless a policy sets it.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Window of all streams of a connection, unless a policy sets one of them. QUIC holds what arrives behind a gap, and does not
/// tell how much: nothing else bounds it.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// Time without packets after which a client has vanished. Activity of requests decides how long one may be idle.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);
/// Part of the handshakes of a worker from which on clients have to prove their addresses.
const PROVING: usize = 8;
/// How many times the handshakes of a worker QUIC may begin. Above their number, each one evicts another as soon as its task
/// runs.
const BEGUN: usize = 2;

/// Returns the window of each stream.
pub(super) fn stream_window(limits: &Limits) -> u32 {
    limits.stream_window.unwrap_or(STREAM_WINDOW)
}

/// Returns the limits of connections to one of `workers` workers. Streams that are not read delay others once they fill the
/// window of the connection.
pub(in crate::proxy) fn quic_limits(limits: &Limits, workers: usize) -> quic::Limits {
    let window = stream_window(limits);
    let all = window.saturating_mul(limits.max_streams.max(1));
    let connection_window = match (limits.connection_window, limits.stream_window) {
        (Some(window), _) => window,
        (None, Some(_)) => all.min(AMPLE_WINDOW),
        (None, None) => all.min(CONNECTION_WINDOW),
    };
    let handshakes = (limits.max_handshakes / workers.max(1)).max(1);
    quic::Limits {
        streams: limits.max_streams,
        stream_window: window,
        connection_window,
        send_window: SEND_WINDOW,
        idle_timeout: IDLE_TIMEOUT,
        handshake_timeout: limits.handshake_timeout,
        retry_from: handshakes.div_ceil(PROVING),
        handshakes: handshakes.saturating_mul(BEGUN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_set_windows_and_workers_divide_handshakes() {
        const MIB: u32 = 1024 * 1024;
        let limits = Limits::default();
        let usual = quic_limits(&limits, 4);
        assert_eq!(usual.connection_window, 4 * MIB);
        assert_eq!((usual.handshakes, usual.retry_from), (2048, 128));
        let limits = Limits {
            max_streams: u32::MAX,
            stream_window: Some(MIB),
            connection_window: None,
            max_handshakes: 1,
            ..limits
        };
        let large = quic_limits(&limits, 2);
        assert_eq!(large.stream_window, MIB);
        assert_eq!(large.connection_window, AMPLE_WINDOW);
        assert_eq!((large.handshakes, large.retry_from), (2, 1));
        let limits = Limits {
            connection_window: Some(65_535),
            ..limits
        };
        assert_eq!(quic_limits(&limits, 2).connection_window, 65_535);
    }
}
