// A client of quic-go for HTTP/3, and of net/http for HTTP/1.1 and HTTP/2. Each line of standard input is a command in JSON; an answer with the
// same id is a line of standard output. Commands run at the same time.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// timeout is longer than any answer takes.
const timeout = 20 * time.Second

// shown is the size up to which a body is returned.
const shown = 64 << 10

type field [2]string

type command struct {
	ID       int
	Kind     string // request, cancel, wire or connect
	Port     int
	Name     string // the server name of TLS
	Protocol string // h1, h2 or h3
	Method   string
	Host     string
	Path     string
	Headers  []field
	Body     []byte
	Sized    bool
	Trailers []field
	Together int
	Cancel   string // "" or "waiting" or "reading"
	Target   int    // the id of the request to cancel
	ALPN     string
	Key      string // files with the certificate of the client
	Cert     string
	Streams  []stream
}

// A stream is opened and gets bytes.
type stream struct {
	Uni  bool
	Data []byte
	Fin  bool
}

type interim struct {
	Status  int     `json:"status"`
	Headers []field `json:"headers"`
}

type answer struct {
	ID          int       `json:"id"`
	Status      int       `json:"status"`
	Protocol    string    `json:"protocol"`
	Headers     []field   `json:"headers"`
	Length      int       `json:"length"`
	Digest      string    `json:"digest"`
	Body        []byte    `json:"body"`
	Trailers    []field   `json:"trailers"`
	Interim     []interim `json:"interim"`
	Error       string    `json:"error"`
	Stream      *uint64   `json:"stream"`     // the code that has ended the stream
	Connection  *uint64   `json:"connection"` // the code that has ended the connection
	Alert       *uint64   `json:"alert"`      // of TLS
	Certificate []string  `json:"certificate"`
}

// fields are sorted, with names in lower case.
func fields(headers http.Header) []field {
	sorted := []field{}
	for name, values := range headers {
		for _, value := range values {
			sorted = append(sorted, field{strings.ToLower(name), value})
		}
	}
	slices.SortStableFunc(sorted, func(a, b field) int { return strings.Compare(a[0], b[0]) })
	return sorted
}

// fail records how QUIC or HTTP/3 has ended.
func (a *answer) fail(err error) {
	a.Error = err.Error()
	var stream *quic.StreamError
	var application *quic.ApplicationError
	var transport *quic.TransportError
	var code uint64
	switch {
	case errors.As(err, &stream):
		code = uint64(stream.ErrorCode)
		a.Stream = &code
	case errors.As(err, &application):
		code = uint64(application.ErrorCode)
		a.Connection = &code
	case errors.As(err, &transport) && transport.ErrorCode.IsCryptoError():
		code = uint64(transport.ErrorCode) - 0x100
		a.Alert = &code
	}
}

type client struct {
	authority  *x509.CertPool
	mutex      sync.Mutex
	transports map[string]http.RoundTripper
	cancels    sync.Map // functions by the ids of requests that wait to be cancelled
}

func (c *client) tls(command command) (*tls.Config, error) {
	config := &tls.Config{RootCAs: c.authority, ServerName: command.Name}
	if command.ALPN != "" {
		config.NextProtos = []string{command.ALPN}
	}
	if command.Cert == "" {
		return config, nil
	}
	certificate, err := tls.LoadX509KeyPair(command.Cert, command.Key)
	// It is sent even if the server does not know its authority.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	return config, err
}

// transport has one connection for all requests with this protocol, server name and port.
func (c *client) transport(command command) (http.RoundTripper, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	key := fmt.Sprint(command.Protocol, command.Name, command.Port)
	if transport, ok := c.transports[key]; ok {
		return transport, nil
	}
	config, err := c.tls(command)
	if err != nil {
		return nil, err
	}
	if command.Protocol == "h3" {
		transport := &http3.Transport{TLSClientConfig: config, DisableCompression: true}
		transport.Dial = func(ctx context.Context, _ string, config *tls.Config, settings *quic.Config) (*quic.Conn, error) {
			return quic.DialAddr(ctx, fmt.Sprintf("127.0.0.1:%d", command.Port), config, settings)
		}
		c.transports[key] = transport
		return transport, nil
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(command.Protocol == "h1")
	protocols.SetHTTP2(command.Protocol == "h2")
	transport := &http.Transport{TLSClientConfig: config, DisableCompression: true, Protocols: protocols, ExpectContinueTimeout: timeout}
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", command.Port))
	}
	c.transports[key] = transport
	return transport, nil
}

// unsized hides the length of a body.
type unsized struct{ io.Reader }

func build(ctx context.Context, command command) (*http.Request, error) {
	url := fmt.Sprintf("https://%s:%d%s", command.Name, command.Port, command.Path)
	var body io.Reader
	if len(command.Body) > 0 || !command.Sized {
		body = bytes.NewReader(command.Body)
		if !command.Sized {
			body = unsized{body}
		}
	}
	request, err := http.NewRequestWithContext(ctx, command.Method, url, body)
	if err != nil {
		return nil, err
	}
	request.Host = command.Host
	request.Header.Set("User-Agent", "test")
	for _, header := range command.Headers {
		request.Header.Add(header[0], header[1])
	}
	for _, trailer := range command.Trailers {
		if request.Trailer == nil {
			request.Trailer = http.Header{}
		}
		request.Trailer.Add(trailer[0], trailer[1])
	}
	return request, nil
}

func (c *client) request(command command) answer {
	result := answer{ID: command.ID, Interim: []interim{}}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			result.Interim = append(result.Interim, interim{code, fields(http.Header(header))})
			return nil
		},
	})
	if command.Cancel == "waiting" {
		c.cancels.Store(command.ID, cancel)
	}
	request, err := build(ctx, command)
	if err != nil {
		result.fail(err)
		return result
	}
	transport, err := c.transport(command)
	if err != nil {
		result.fail(err)
		return result
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		result.fail(err)
		return result
	}
	defer response.Body.Close()
	result.Status, result.Protocol, result.Headers = response.StatusCode, response.Proto, fields(response.Header)
	if command.Cancel == "reading" {
		_, err = io.ReadFull(response.Body, make([]byte, 10))
		cancel()
	}
	var body []byte
	if err == nil {
		body, err = io.ReadAll(response.Body)
	}
	if err != nil {
		result.fail(err)
	}
	digest := sha256.Sum256(body)
	result.Length, result.Digest, result.Trailers = len(body), hex.EncodeToString(digest[:]), fields(response.Trailer)
	if len(body) <= shown {
		result.Body = body
	}
	return result
}

// dial makes a connection of QUIC without HTTP/3.
func (c *client) dial(ctx context.Context, command command) (*quic.Conn, error) {
	config, err := c.tls(command)
	if err != nil {
		return nil, err
	}
	return quic.DialAddr(ctx, fmt.Sprintf("127.0.0.1:%d", command.Port), config, &quic.Config{})
}

// dialed makes a connection, uses it, and reports how that fails.
func (c *client) dialed(command command, use func(context.Context, *quic.Conn, command, *answer) error) answer {
	result := answer{ID: command.ID}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	connection, err := c.dial(ctx, command)
	if err == nil {
		defer connection.CloseWithError(0x100, "")
		err = use(ctx, connection, command, &result)
	}
	if err != nil {
		result.fail(err)
	}
	return result
}

// connect reports the handshake, and waits for the control stream of the server.
func connect(ctx context.Context, connection *quic.Conn, _ command, result *answer) error {
	state := connection.ConnectionState().TLS
	result.Certificate, result.Protocol = state.PeerCertificates[0].DNSNames, state.NegotiatedProtocol
	// Whether the server accepts the certificate of the client is known when it sends something.
	_, err := connection.AcceptUniStream(ctx)
	return err
}

// wire writes bytes to streams, and reports what comes on the last one, and how it or the connection ends.
func (c *client) wire(ctx context.Context, connection *quic.Conn, command command, result *answer) (err error) {
	for index, each := range command.Streams {
		isLast := index == len(command.Streams)-1
		if each.Uni {
			err = c.wireUni(ctx, connection, each, isLast)
		} else {
			result.Body, err = c.wireBidi(ctx, connection, each, isLast)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *client) wireUni(ctx context.Context, connection *quic.Conn, each stream, isLast bool) error {
	opened, err := connection.OpenUniStreamSync(ctx)
	if err != nil {
		return err
	}
	if _, err := opened.Write(each.Data); err != nil {
		return err
	}
	if each.Fin {
		opened.Close()
	}
	if !isLast {
		return nil
	}
	// Ends with the connection, or when the server stops the stream.
	select {
	case <-opened.Context().Done():
	case <-connection.Context().Done():
	case <-ctx.Done():
	}
	if err := context.Cause(connection.Context()); err != nil {
		return err
	}
	if each.Fin {
		<-connection.Context().Done()
		return context.Cause(connection.Context())
	}
	return context.Cause(opened.Context())
}

func (c *client) wireBidi(ctx context.Context, connection *quic.Conn, each stream, isLast bool) ([]byte, error) {
	opened, err := connection.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := opened.Write(each.Data); err != nil {
		return nil, err
	}
	if each.Fin {
		opened.Close()
	}
	if !isLast {
		return nil, nil
	}
	deadline, _ := ctx.Deadline()
	opened.SetReadDeadline(deadline)
	return io.ReadAll(opened)
}

func (c *client) run(command command) answer {
	switch command.Kind {
	case "wire":
		return c.dialed(command, c.wire)
	case "connect":
		return c.dialed(command, connect)
	case "cancel":
		if cancel, ok := c.cancels.LoadAndDelete(command.Target); ok {
			cancel.(context.CancelFunc)()
		}
		return answer{ID: command.ID}
	}
	answers := make([]answer, max(command.Together, 1))
	var group sync.WaitGroup
	for index := range answers {
		group.Go(func() { answers[index] = c.request(command) })
	}
	group.Wait()
	first := answers[0]
	for _, other := range answers[1:] {
		if other.Status != first.Status || other.Digest != first.Digest || other.Error != first.Error {
			other.Error = fmt.Sprintf("several answers: %d %s %s, %d %s %s", first.Status, first.Digest, first.Error, other.Status, other.Digest, other.Error)
			return other
		}
	}
	return first
}

func main() {
	log.SetOutput(io.Discard)
	authority, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	client := &client{authority: x509.NewCertPool(), transports: map[string]http.RoundTripper{}}
	client.authority.AppendCertsFromPEM(authority)
	input := bufio.NewReader(os.Stdin)
	var writing sync.Mutex
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		var next command
		if err := json.Unmarshal(line, &next); err != nil {
			panic(err)
		}
		go func() {
			result := client.run(next)
			writing.Lock()
			defer writing.Unlock()
			json.NewEncoder(os.Stdout).Encode(result)
		}()
	}
}
