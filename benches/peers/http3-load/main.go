// The load of the cases of HTTP/3, with http3 of quic-go. It offers TLS 1.3 with X25519 alone and never resumes a session.
//
//	http3-load requests PORT SECONDS CONNECTIONS STREAMS PATH
//	http3-load handshakes PORT SECONDS CONNECTIONS
//	http3-load idle PORT
//
// Each prints a line of JSON at its end. The last one reads lines of `open COUNT` or `check` until then, and prints one for each, too.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// patience is longer than any response takes that is not lost.
const patience = 10 * time.Second

// sockets is how many there are for idle connections, which share them evenly.
const sockets = 16

// sampled is of how many idle connections one is used again, to show that they are open.
const sampled = 10

const noError = quic.ApplicationErrorCode(http3.ErrCodeNoError)

type result struct {
	Requests int     `json:"requests"`
	Seconds  float64 `json:"seconds"`
	Fault    string  `json:"fault"`
}

// A target is a port of 127.0.0.1, and how connections to it are made.
type target struct {
	address *net.UDPAddr
	url     string
	tls     *tls.Config
	quic    *quic.Config
	http    *http3.Transport
}

func newTarget(port int, path string) *target {
	return &target{
		address: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port},
		url:     fmt.Sprintf("https://localhost:%d%s", port, path),
		tls: &tls.Config{
			ServerName:         "localhost",
			InsecureSkipVerify: true,
			MinVersion:         tls.VersionTLS13,
			CurvePreferences:   []tls.CurveID{tls.X25519},
			NextProtos:         []string{http3.NextProtoH3},
		},
		quic: &quic.Config{MaxIncomingStreams: -1, HandshakeIdleTimeout: patience / 2, MaxIdleTimeout: 2 * time.Minute},
		http: &http3.Transport{DisableCompression: true},
	}
}

func newSocket() (*quic.Transport, error) {
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	return &quic.Transport{Conn: socket}, nil
}

// connect makes a connection with a full handshake and the one cipher suite of all loads.
func (t *target) connect(socket *quic.Transport) (*http3.ClientConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connection, err := socket.Dial(ctx, t.address, t.tls, t.quic)
	if err != nil {
		return nil, err
	}
	state := connection.ConnectionState().TLS
	if state.DidResume {
		err = errors.New("a session was resumed")
	} else if state.CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
		err = errors.New("another cipher suite: " + tls.CipherSuiteName(state.CipherSuite))
	}
	if err != nil {
		connection.CloseWithError(noError, "")
		return nil, err
	}
	return t.http.NewClientConn(connection), nil
}

// get makes a request and reads its response, which has to be a 200 of the announced length.
func (t *target) get(connection *http3.ClientConn, buffer []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url, nil)
	if err != nil {
		return err
	}
	response, err := connection.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	length := int64(0)
	for err == nil {
		var count int
		count, err = response.Body.Read(buffer)
		length += int64(count)
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	if response.StatusCode != http.StatusOK || length != response.ContentLength {
		return fmt.Errorf("status %d with %d of %d bytes", response.StatusCode, length, response.ContentLength)
	}
	return nil
}

// A tally counts what was done, and the faults.
type tally struct {
	mutex  sync.Mutex
	done   int
	faults int
	first  error
}

func (t *tally) add(err error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.done++
	if err == nil {
		return
	}
	t.faults++
	if t.first == nil {
		t.first = err
	}
}

func (t *tally) result(started time.Time) result {
	found := result{Requests: t.done, Seconds: time.Since(started).Seconds()}
	if t.first != nil {
		found.Fault = fmt.Sprintf("%d faults, the first: %v", t.faults, t.first)
	}
	return found
}

// requests keeps a number of streams of each connection busy. Each connection has a socket of its own.
func requests(target *target, seconds float64, connections, streams int) (result, error) {
	var open []*http3.ClientConn
	defer func() {
		for _, connection := range open {
			connection.CloseWithError(noError, "")
		}
	}()
	started := time.Now()
	for range connections {
		socket, err := newSocket()
		if err != nil {
			return result{}, err
		}
		connection, err := target.connect(socket)
		if err != nil {
			return result{}, err
		}
		open = append(open, connection)
	}
	deadline := started.Add(time.Duration(seconds * float64(time.Second)))
	var tally tally
	var group sync.WaitGroup
	for _, connection := range open {
		for range streams {
			group.Go(func() {
				buffer := make([]byte, 64<<10)
				for time.Now().Before(deadline) {
					err := target.get(connection, buffer)
					tally.add(err)
					if err != nil {
						return
					}
				}
			})
		}
	}
	group.Wait()
	return tally.result(started), nil
}

// handshakes makes new connections, as many at a time, with one request on each.
func handshakes(target *target, seconds float64, connections int) (result, error) {
	started := time.Now()
	deadline := started.Add(time.Duration(seconds * float64(time.Second)))
	var tally tally
	var group sync.WaitGroup
	for range connections {
		socket, err := newSocket()
		if err != nil {
			return result{}, err
		}
		group.Go(func() {
			buffer := make([]byte, 4096)
			for time.Now().Before(deadline) {
				connection, err := target.connect(socket)
				if err == nil {
					err = target.get(connection, buffer)
					connection.CloseWithError(noError, "")
				}
				tally.add(err)
				if err != nil {
					return
				}
			}
		})
	}
	group.Wait()
	return tally.result(started), nil
}

// Connections that have made one request each and are silent.
type idle struct {
	target  *target
	sockets []*quic.Transport
	open    []*http3.ClientConn
}

func (i *idle) command(words []string) error {
	buffer := make([]byte, 4096)
	switch {
	case len(words) == 2 && words[0] == "open":
		count, err := strconv.Atoi(words[1])
		if err != nil {
			return err
		}
		for range count {
			connection, err := i.target.connect(i.sockets[len(i.open)%len(i.sockets)])
			if err != nil {
				return err
			}
			i.open = append(i.open, connection)
			if err := i.target.get(connection, buffer); err != nil {
				return err
			}
		}
		return nil
	case len(words) == 1 && words[0] == "check":
		for at := 0; at < len(i.open); at += sampled {
			if err := i.target.get(i.open[at], buffer); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("unknown command %q", words)
}

// keepIdle obeys commands until there are no more, and then closes all connections.
func keepIdle(target *target) (result, error) {
	idle := &idle{target: target}
	for range sockets {
		socket, err := newSocket()
		if err != nil {
			return result{}, err
		}
		idle.sockets = append(idle.sockets, socket)
	}
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		var found result
		if err := idle.command(strings.Fields(input.Text())); err != nil {
			found.Fault = err.Error()
		}
		if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
			return result{}, err
		}
	}
	for _, connection := range idle.open {
		connection.CloseWithError(noError, "")
	}
	return result{Requests: len(idle.open)}, input.Err()
}

func run(words []string) (result, error) {
	var port, connections, streams int
	var seconds float64
	var mode, path string
	given := strings.Join(words, " ")
	switch {
	case len(words) == 6 && words[0] == "requests":
		if _, err := fmt.Sscan(given, &mode, &port, &seconds, &connections, &streams, &path); err != nil {
			return result{}, err
		}
		return requests(newTarget(port, path), seconds, connections, streams)
	case len(words) == 4 && words[0] == "handshakes":
		if _, err := fmt.Sscan(given, &mode, &port, &seconds, &connections); err != nil {
			return result{}, err
		}
		return handshakes(newTarget(port, "/"), seconds, connections)
	case len(words) == 2 && words[0] == "idle":
		if _, err := fmt.Sscan(given, &mode, &port); err != nil {
			return result{}, err
		}
		return keepIdle(newTarget(port, "/"))
	}
	return result{}, fmt.Errorf("unknown arguments %q", words)
}

func main() {
	// quic-go says on the log that the kernel limits the buffers of sockets; the output is JSON.
	log.SetOutput(io.Discard)
	// The load's core is shared with the backend, and memory is not scarce.
	debug.SetGCPercent(400)
	found, err := run(os.Args[1:])
	if err != nil {
		found.Fault = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		os.Exit(1)
	}
}
