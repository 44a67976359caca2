package main

import (
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of ProcessingRequest (envoy.service.ext_proc.v3). Those of ProcessingResponse are one less.
const (
	requestHeaders  = 2
	requestBody     = 4
	responseBody    = 5
	requestTrailers = 6
	last            = 7
)

// raw is the codec of messages that stay bytes.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = slices.Clone(data)
	return nil
}

// picker serves the protocol of endpoint pickers: it chooses from a list in turn, and returns bodies as they are.
func picker(arguments []string) error {
	flags := flag.NewFlagSet("picker", flag.ExitOnError)
	address := flags.String("listen", "127.0.0.1:9002", "where it listens, in plain text")
	endpoints := flags.String("endpoints", "127.0.0.1:8000", "what it chooses: a list with commas, of which each request gets another first one")
	hold := flags.Bool("hold", false, "answer a request once all of it is there, instead of part by part")
	_ = flags.Parse(arguments)
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		return err
	}
	choose := inTurn(strings.Split(*endpoints, ","))
	handler := func(_ any, stream grpc.ServerStream) error { return process(stream, choose, *hold) }
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(handler))
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-ended
		server.GracefulStop()
	}()
	return server.Serve(listener)
}

// inTurn returns a function whose lists begin with each of the endpoints in turn.
func inTurn(endpoints []string) func() string {
	var count atomic.Uint64
	return func() string {
		begin := int(count.Add(1) % uint64(len(endpoints)))
		return strings.Join(slices.Concat(endpoints[begin:], endpoints[:begin]), ",")
	}
}

func process(stream grpc.ServerStream, choose func() string, hold bool) error {
	var held [][]byte
	for {
		var message []byte
		if err := stream.RecvMsg(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		number, value, err := part(message)
		if err != nil {
			return err
		}
		held = append(held, answer(number, value, choose))
		isOfRequest := number == requestHeaders || number == requestBody
		if hold && isOfRequest && !ends(number, value) {
			continue
		}
		for _, message := range held {
			if err := stream.SendMsg(&message); err != nil {
				return err
			}
		}
		held = nil
	}
}

// part returns what a message says of a request or response, and the number of that field.
func part(message []byte) (protowire.Number, []byte, error) {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return 0, nil, protowire.ParseError(tag)
		}
		length := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if length < 0 {
			return 0, nil, protowire.ParseError(length)
		}
		if number >= requestHeaders && number <= last && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[tag:])
			return number, value, nil
		}
		message = message[tag+length:]
	}
	return 0, nil, errors.New("a message that says nothing")
}

// ends reports whether a head or a part of a body has end_of_stream.
func ends(number protowire.Number, value []byte) bool {
	end := protowire.Number(2)
	if number == requestHeaders {
		end = 3
	}
	for len(value) > 0 {
		number, kind, tag := protowire.ConsumeTag(value)
		if tag < 0 {
			return false
		}
		if number == end && kind == protowire.VarintType {
			set, _ := protowire.ConsumeVarint(value[tag:])
			return set != 0
		}
		length := protowire.ConsumeFieldValue(number, kind, value[tag:])
		if length < 0 {
			return false
		}
		value = value[tag+length:]
	}
	return false
}

// answer returns the answer to a part: the choice for the head of a request, and what was sent for a body.
func answer(number protowire.Number, value []byte, choose func() string) []byte {
	var common []byte
	switch {
	case number == requestHeaders:
		// CommonResponse.header_mutation.set_headers.header, with key and raw_value.
		header := append(field(1, []byte("x-gateway-destination-endpoint")), field(3, []byte(choose()))...)
		common = field(2, field(1, field(1, header)))
	case number == requestBody || number == responseBody:
		// CommonResponse.body_mutation.streamed_response, whose fields are those of HttpBody.
		common = field(3, field(3, value))
	case number >= requestTrailers:
		return field(number-1, nil)
	}
	return field(number-1, field(1, common))
}

func field(number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
}
