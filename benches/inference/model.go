package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// model serves 4 KiB after the body of a request, or with ?events=N a stream of N events, `size` bytes each with a `pause` between.
func model(arguments []string) error {
	flags := flag.NewFlagSet("model", flag.ExitOnError)
	address := flags.String("listen", "127.0.0.1:8000", "where it listens")
	_ = flags.Parse(arguments)
	answer := bytes.Repeat([]byte("x"), 4096)
	server := &http.Server{Addr: *address, Handler: http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		if _, err := io.Copy(io.Discard, request.Body); err != nil {
			return
		}
		writer.Header().Set("x-model", *address)
		events, _ := strconv.Atoi(request.URL.Query().Get("events"))
		if events > 0 {
			stream(writer, request, events)
			return
		}
		// As of model servers that send JSON. Without it, the end of the body is a message of its own for pickers.
		writer.Header().Set("content-length", strconv.Itoa(len(answer)))
		_, _ = writer.Write(answer)
	})}
	stopped := make(chan error, 1)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-ended
		stopped <- server.Shutdown(context.Background())
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// stream sends events with their number and the time in nanoseconds.
func stream(writer http.ResponseWriter, request *http.Request, events int) {
	query := request.URL.Query()
	size, _ := strconv.Atoi(query.Get("size"))
	pause, _ := time.ParseDuration(query.Get("pause"))
	padding := strings.Repeat("x", size)
	writer.Header().Set("content-type", "text/event-stream")
	controller := http.NewResponseController(writer)
	for number := range events {
		if number > 0 {
			time.Sleep(pause)
		}
		if _, err := fmt.Fprintf(writer, "data: %d %d %s\n\n", number, time.Now().UnixNano(), padding); err != nil {
			return
		}
		if err := controller.Flush(); err != nil {
			return
		}
	}
}
