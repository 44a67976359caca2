package main

import (
	"bytes"
	"flag"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// failure is a request without a 200: when it was sent in seconds, its status or 0, and the milliseconds that it took.
type failure struct {
	At     float64 `json:"at"`
	Status int     `json:"status"`
	Took   float64 `json:"took"`
}

// results are those of a load. Requests with a 200 count by the model server that has responded.
type results struct {
	lock     sync.Mutex
	Requests int            `json:"requests"`
	Models   map[string]int `json:"models"`
	Failures []failure      `json:"failures"`
}

// load sends requests: each connection one after the other, or at a rate, whatever the responses.
func load(arguments []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	url := flags.String("url", "http://127.0.0.1:8080/", "where requests go")
	connections := flags.Int("connections", 32, "how many requests are under way at a time, without a rate")
	rate := flags.Int("rate", 0, "requests per second")
	seconds := flags.Float64("seconds", 600, "how long it sends")
	requests := flags.Int64("requests", 1<<40, "how many it sends at most")
	size := flags.Int("size", 1024, "bytes of a request")
	large := flags.Int("large", 0, "bytes of each hundredth request, if not 0")
	_ = flags.Parse(arguments)
	usual, other := make([]byte, *size), make([]byte, *size)
	if *large > 0 {
		other = make([]byte, *large)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	run := &results{Models: map[string]int{}, Failures: []failure{}}
	var sent atomic.Int64
	begin := time.Now()
	end := begin.Add(time.Duration(*seconds * float64(time.Second)))
	next := func() bool {
		number := sent.Add(1)
		if number > *requests || time.Now().After(end) {
			return false
		}
		body := usual
		if number%100 == 0 {
			body = other
		}
		run.send(client, *url, body)
		return true
	}
	var under sync.WaitGroup
	if *rate > 0 {
		for number := range int64(*seconds * float64(*rate)) {
			time.Sleep(time.Until(begin.Add(time.Duration(number) * time.Second / time.Duration(*rate))))
			under.Go(func() { next() })
		}
	} else {
		for range *connections {
			under.Go(func() {
				for next() {
				}
			})
		}
	}
	under.Wait()
	return printed(run)
}

func (run *results) send(client *http.Client, url string, body []byte) {
	begin := time.Now()
	status, model := 0, ""
	response, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
	if err == nil {
		status, model = response.StatusCode, response.Header.Get("x-model")
	}
	took := time.Since(begin)
	run.lock.Lock()
	defer run.lock.Unlock()
	run.Requests++
	if status == http.StatusOK {
		run.Models[model]++
		return
	}
	at := float64(begin.UnixNano()) / 1e9
	run.Failures = append(run.Failures, failure{At: at, Status: status, Took: milliseconds(took)})
}

func milliseconds(duration time.Duration) float64 {
	return float64(duration) / float64(time.Millisecond)
}

// quantiles returns the median, the slowest of a hundred and of a thousand, and the slowest, in milliseconds.
func quantiles(times []time.Duration) map[string]float64 {
	found := map[string]float64{}
	if len(times) == 0 {
		return found
	}
	slices.Sort(times)
	for name, share := range map[string]float64{"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1} {
		index := min(int(float64(len(times))*share), len(times)-1)
		found[name] = milliseconds(times[index])
	}
	return found
}
