package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

const fakepodsUsage = `usage: testcluster fakepods --url URL --ca FILE [--connect ADDRESS:PORT]
         [--sources PREFIX] [--silent] [--brief] <PODS

Connects to a controller of Portcullis as pods of Gateways do, with a connection for
each pod. Reports every commit as served, and runs until standard input ends.
PODS has a line of JSON for each pod: {"name": ..., "gateway": "NAMESPACE/NAME",
"token": ..., "position": ...}. Prints a line of JSON for each event:

  {"pod": NAME, "at": NANOSECONDS, "status": 200, "error": TEXT OF THE REFUSAL}
  {"pod": NAME, "at": NANOSECONDS, "line": {...}}
  {"pod": NAME, "at": NANOSECONDS, "end": REASON}

  --connect ADDRESS:PORT  address of the host of URL
  --sources PREFIX        pods come from addresses of this IPv4 prefix, which has to be
                          local (ip route add local PREFIX dev lo), each from its own
  --silent                does not report commits as served
  --brief                 prints only kind and name of the object of a "put"
`

// fakePod is a pod that connects.
type fakePod struct {
	Name, Gateway, Token, Position string
}

// fakePods connects all pods, and prints their events.
type fakePods struct {
	url           string
	transport     func(source *net.TCPAddr) *http.Transport
	sources       netip.Prefix
	silent, brief bool

	mu  sync.Mutex
	out *json.Encoder
}

// event is one line of the output.
type event struct {
	Pod    string          `json:"pod"`
	At     int64           `json:"at"`
	Status int             `json:"status,omitempty"`
	Error  string          `json:"error,omitempty"`
	Line   json.RawMessage `json:"line,omitempty"`
	End    string          `json:"end,omitempty"`
}

func runFakePods(args []string) error {
	f := &fakePods{out: json.NewEncoder(os.Stdout)}
	fs := flag.NewFlagSet("fakepods", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&f.url, "url", "", "")
	ca := fs.String("ca", "", "")
	connect := fs.String("connect", "", "")
	fs.TextVar(&f.sources, "sources", netip.Prefix{}, "")
	fs.BoolVar(&f.silent, "silent", false, "")
	fs.BoolVar(&f.brief, "brief", false, "")
	if err := fs.Parse(args); err != nil || f.url == "" || *ca == "" || fs.NArg() > 0 {
		return errors.Join(err, errors.New(fakepodsUsage))
	}
	pem, err := os.ReadFile(*ca)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s has no certificate", *ca)
	}
	f.transport = func(source *net.TCPAddr) *http.Transport {
		return &http.Transport{
			ForceAttemptHTTP2: true,
			TLSClientConfig:   &tls.Config{RootCAs: roots},
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if *connect != "" {
					address = *connect
				}
				dialer := net.Dialer{Timeout: 5 * time.Second}
				if source != nil {
					dialer.LocalAddr = source
				}
				return dialer.DialContext(ctx, network, address)
			},
		}
	}
	return f.run(os.Stdin)
}

// run connects a pod for each line of the input, and ends with it.
func (f *fakePods) run(input io.Reader) error {
	lines := bufio.NewReader(input)
	source := f.sources.Addr()
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil // all connections end with the process
		}
		var pod fakePod
		if err := json.Unmarshal(line, &pod); err != nil {
			return fmt.Errorf("%q is not a pod: %w", line, err)
		}
		var local *net.TCPAddr
		if source.IsValid() {
			source = source.Next()
			local = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
		}
		go func() {
			end := f.follow(context.Background(), pod, local)
			f.print(event{Pod: pod.Name, End: end.Error()})
		}()
	}
}

func (f *fakePods) print(e event) {
	e.At = time.Now().UnixNano()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.out.Encode(e)
}

// follow runs a connection of a pod, and returns the reason for its end.
func (f *fakePods) follow(ctx context.Context, pod fakePod, source *net.TCPAddr) error {
	namespace, name, _ := strings.Cut(pod.Gateway, "/")
	url := fmt.Sprintf("%s/v1alpha1/gateways/%s/%s/stream", f.url, namespace, name)
	body, reports := io.Pipe()
	defer reports.Close()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return err
	}
	if pod.Token != "" {
		request.Header.Set("Authorization", "Bearer "+pod.Token)
	}
	if pod.Position != "" {
		request.Header.Set("Portcullis-Position", pod.Position)
	}
	transport := f.transport(source)
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<16))
		f.print(event{Pod: pod.Name, Status: response.StatusCode, Error: string(text)})
		return errors.New("refused")
	}
	f.print(event{Pod: pod.Name, Status: response.StatusCode})
	return f.read(pod, response.Body, reports)
}

// update has the relevant fields of a line from the controller.
type update struct {
	Begin *struct {
		Instance string `json:"instance"`
	} `json:"begin,omitempty"`
	Put *struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	} `json:"put,omitempty"`
	Commit *struct {
		Revision uint64 `json:"revision"`
	} `json:"commit,omitempty"`
}

// read prints the lines that a pod receives, and reports commits as served.
func (f *fakePods) read(pod fakePod, body io.Reader, reports io.Writer) error {
	instance := ""
	lines := bufio.NewReaderSize(body, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return err
		}
		var u update
		if err := json.Unmarshal(line, &u); err != nil {
			return fmt.Errorf("%q is not an update: %w", line, err)
		}
		shown := json.RawMessage(line)
		if f.brief && u.Put != nil {
			shown, _ = json.Marshal(u)
		}
		f.print(event{Pod: pod.Name, Line: shown})
		if u.Begin != nil {
			instance = u.Begin.Instance
		}
		if u.Commit != nil && !f.silent {
			report := fmt.Sprintf(`{"serves":{"instance":%q,"revision":%d}}`, instance, u.Commit.Revision)
			if _, err := fmt.Fprintln(reports, report); err != nil {
				return err
			}
		}
	}
}
