package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	neturl "net/url"
	"strings"
	"sync"
	"time"
)

// ramp is the time in which streams begin, one after the other.
const ramp = 5 * time.Second

// first measures the time from a request to the first byte of the body of its response, of URLs in turn.
func first(arguments []string) error {
	flags := flag.NewFlagSet("first", flag.ExitOnError)
	count := flags.Int("requests", 1000, "how many each URL gets")
	_ = flags.Parse(arguments)
	client := &http.Client{Timeout: 10 * time.Second}
	times := make([][]time.Duration, flags.NArg())
	for range *count {
		for index, url := range flags.Args() {
			took, err := firstByte(client, url)
			if err != nil {
				return err
			}
			times[index] = append(times[index], took)
		}
	}
	found := []map[string]float64{}
	for _, of := range times {
		found = append(found, quantiles(of))
	}
	return printed(found)
}

func firstByte(client *http.Client, url string) (time.Duration, error) {
	begin := time.Now()
	response, err := client.Post(url, "application/json", strings.NewReader("{}"))
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, errors.New(response.Status)
	}
	if _, err := io.ReadFull(response.Body, make([]byte, 1)); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	_, err = io.Copy(io.Discard, response.Body)
	return took, err
}

// events are those that readers have got: how late, and how many have not come.
type events struct {
	lock   sync.Mutex
	delays []time.Duration
	lost   int
	broken int
}

// streams reads streams of events while other clients do not read theirs.
func streams(arguments []string) error {
	flags := flag.NewFlagSet("streams", flag.ExitOnError)
	url := flags.String("url", "http://127.0.0.1:8080/", "where requests go")
	count := flags.Int("streams", 1000, "how many streams are under way at a time")
	silent := flags.Int("silent", 50, "how many of them are not read")
	seconds := flags.Int("seconds", 60, "how long a stream is")
	_ = flags.Parse(arguments)
	// More than windows and buffers hold.
	many := 10 * *seconds
	long := fmt.Sprintf("%s?events=%d&pause=100ms&size=65536", *url, many)
	for range *silent {
		connection, err := unread(long)
		if err != nil {
			return err
		}
		defer connection.Close()
	}
	readers := *count - *silent
	expected := 2 * *seconds
	short := fmt.Sprintf("%s?events=%d&pause=500ms&size=200", *url, expected)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: readers}}
	found := &events{}
	var under sync.WaitGroup
	for range readers {
		time.Sleep(ramp / time.Duration(readers))
		under.Go(func() { found.read(client, short, expected) })
	}
	under.Wait()
	return printed(map[string]any{
		"readers": readers,
		"events":  len(found.delays),
		"lost":    found.lost,
		"broken":  found.broken,
		"delays":  quantiles(found.delays),
	})
}

// unread sends a request whose response nobody reads.
func unread(url string) (net.Conn, error) {
	parsed, err := neturl.Parse(url)
	if err != nil {
		return nil, err
	}
	connection, err := net.Dial("tcp", parsed.Host)
	if err != nil {
		return nil, err
	}
	if err := connection.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nhost: %s\r\ncontent-length: 2\r\n\r\n{}", parsed.RequestURI(), parsed.Host)
	return connection, err
}

func (found *events) read(client *http.Client, url string, expected int) {
	var delays []time.Duration
	response, err := client.Post(url, "application/json", strings.NewReader("{}"))
	if err == nil {
		lines := bufio.NewScanner(response.Body)
		for lines.Scan() {
			var number int
			var sent int64
			if _, err := fmt.Sscanf(lines.Text(), "data: %d %d", &number, &sent); err == nil {
				delays = append(delays, time.Since(time.Unix(0, sent)))
			}
		}
		err = lines.Err()
		_ = response.Body.Close()
	}
	found.lock.Lock()
	defer found.lock.Unlock()
	found.delays = append(found.delays, delays...)
	found.lost += expected - len(delays)
	if err != nil {
		found.broken++
	}
}
